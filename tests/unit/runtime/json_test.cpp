#include "runtime/support/json.hpp"

#include <gtest/gtest.h>

namespace attune {
namespace {

TEST(Json, PairsThatBeginWithATextAreAnObjectInTheirOrder) {
  const Json json = {{"z", 1}, {"a", {{"b", true}}}, {"none", Json()}, {"list", Json::array()}};
  EXPECT_EQ(json.dump(), R"({"z":1,"a":{"b":true},"none":null,"list":[]})");
  EXPECT_EQ((Json{1, 2.5, "x"}.dump()), R"([1,2.5,"x"])");
  EXPECT_EQ(Json::object().dump(), "{}");
}

TEST(Json, WhatIsNotUtf8IsReplaced) { EXPECT_EQ(Json("a\xff").dump(), "\"a\xef\xbf\xbd\""); }

TEST(Json, GrowsFromNull) {
  Json json;
  json.set("a", 1);
  json.set("a", 2);
  Json list;
  list.push_back("x");
  json.set("list", list);
  EXPECT_EQ(json.dump(), R"({"a":2,"list":["x"]})");
}

TEST(Json, ReadsMembersOfTheKindThatIsAskedFor) {
  const auto json = Json::parse(R"({"n": 3, "x": 1.5, "t": "text", "ts": ["a", "b"], "b": true})");
  ASSERT_TRUE(json);
  int n = 0;
  double x = 0;
  std::string t;
  std::vector<std::string> ts;
  bool b = false;
  EXPECT_TRUE(json->read("n", n) && json->read("x", x) && json->read("t", t) &&
              json->read("ts", ts) && json->read("b", b));
  EXPECT_EQ(n, 3);
  EXPECT_EQ(x, 1.5);
  EXPECT_EQ(t, "text");
  EXPECT_EQ(ts, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(b);
}

TEST(Json, LeavesTheValueWhereAMemberIsOfAnotherKind) {
  const Json json = {{"n", 3}, {"mixed", {"a", 1}}};
  std::string text = "as it was";
  std::vector<std::string> texts{"as they were"};
  EXPECT_FALSE(json.read("n", text));
  EXPECT_FALSE(json.read("absent", text));
  EXPECT_FALSE(json.read("mixed", texts));
  EXPECT_FALSE(Json(3).read("n", text));
  EXPECT_EQ(text, "as it was");
  EXPECT_EQ(texts.front(), "as they were");
}

TEST(Json, WhatIsAbsentIsNullOrNone) {
  const auto json = Json::parse(R"({"list": [1, 2]})");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->at("absent").dump(), "null");
  EXPECT_EQ(json->at("list").items().size(), 2U);
  EXPECT_TRUE(json->at("list").members().empty());
  EXPECT_EQ(json->members().front().first, "list");
  EXPECT_FALSE(json->text());
  EXPECT_TRUE(json->items().empty());
  EXPECT_TRUE(Json("text").empty());
  EXPECT_FALSE(Json::parse("{"));
}

}  // namespace
}  // namespace attune
