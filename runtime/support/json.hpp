// JSON values, to write and to read. The library that does the work is dear to compile; its headers
// stay in one source file.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attune {

class Json {
 public:
  Json();  // null
  Json(bool value);
  Json(int value);
  Json(std::int64_t value);
  Json(std::uint64_t value);
  Json(double value);
  Json(const char* text);
  Json(std::string_view text);
  Json(const std::string& text);
  Json(const std::vector<std::string>& texts);
  // An object when every item is a pair that begins with a text, else an array.
  Json(std::initializer_list<Json> items);
  static Json array();   // with no items
  static Json object();  // with no members

  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(Json other) noexcept;
  ~Json();

  // nullopt when `text` is not JSON.
  static std::optional<Json> parse(std::string_view text);
  // On one line, or with `indent` spaces a level. What is not UTF-8 is replaced and not refused:
  // names of files and compilers' logs may be any bytes.
  std::string dump(int indent = -1) const;

  // Precondition: an array, or null, which becomes one.
  void push_back(Json item);
  // Precondition: an object, or null, which becomes one.
  void set(const std::string& name, Json value);

  // Of an array or an object; else none.
  std::size_t size() const;
  bool empty() const { return size() == 0; }
  std::vector<Json> items() const;                            // an array's; else none
  std::vector<std::pair<std::string, Json>> members() const;  // an object's; else none
  bool contains(const std::string& name) const;
  Json at(const std::string& name) const;   // null when it is no object that has this
  std::optional<std::string> text() const;  // nullopt when it is none

  // Sets `value` to the member of that name; false, and `value` as it was, when there is none of
  // its kind. Value: bool, int, std::uint64_t, double, std::string or a vector of them.
  template <typename Value>
  bool read(const std::string& name, Value& value) const;

 private:
  struct Tree;
  std::unique_ptr<Tree> tree_;  // null only after a move
};

}  // namespace attune
