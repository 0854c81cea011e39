#include "runtime/support/json.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace attune {
namespace {

using Node = nlohmann::ordered_json;

template <typename Value>
bool holds(const Node& node) {
  if constexpr (std::is_same_v<Value, bool>) {
    return node.is_boolean();
  } else if constexpr (std::is_arithmetic_v<Value>) {
    return node.is_number();
  } else if constexpr (std::is_same_v<Value, std::string>) {
    return node.is_string();
  } else {
    return node.is_array() && std::ranges::all_of(node, &holds<typename Value::value_type>);
  }
}

}  // namespace

struct Json::Tree {
  Node node;

  static Json json(Node node) {
    Json made;
    made.tree_->node = std::move(node);
    return made;
  }
};

Json::Json() : tree_(std::make_unique<Tree>()) {}
Json::Json(bool value) : tree_(new Tree{value}) {}
Json::Json(int value) : tree_(new Tree{value}) {}
Json::Json(std::int64_t value) : tree_(new Tree{value}) {}
Json::Json(std::uint64_t value) : tree_(new Tree{value}) {}
Json::Json(double value) : tree_(new Tree{value}) {}
Json::Json(const char* text) : tree_(new Tree{text}) {}
Json::Json(std::string_view text) : tree_(new Tree{text}) {}
Json::Json(const std::string& text) : tree_(new Tree{text}) {}
Json::Json(const std::vector<std::string>& texts) : tree_(new Tree{texts}) {}

Json::Json(std::initializer_list<Json> items) : Json() {
  Node& node = tree_->node;
  const bool object = std::ranges::all_of(items, [](const Json& item) {
    const Node& pair = item.tree_->node;
    return pair.is_array() && pair.size() == 2 && pair.front().is_string();
  });
  node = object ? Node::object() : Node::array();
  for (const Json& item : items) {
    const Node& one = item.tree_->node;
    if (object) {
      node[one.front().get_ref<const std::string&>()] = one.back();
    } else {
      node.push_back(one);
    }
  }
}

Json Json::array() { return Tree::json(Node::array()); }
Json Json::object() { return Tree::json(Node::object()); }

Json::Json(const Json& other) : tree_(std::make_unique<Tree>(*other.tree_)) {}
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(Json other) noexcept {
  tree_ = std::move(other.tree_);
  return *this;
}
Json::~Json() = default;

std::optional<Json> Json::parse(std::string_view text) {
  Node node = Node::parse(text, nullptr, false);
  if (node.is_discarded()) return std::nullopt;
  return Tree::json(std::move(node));
}

std::string Json::dump(int indent) const {
  return tree_->node.dump(indent, ' ', false, Node::error_handler_t::replace);
}

void Json::push_back(Json item) { tree_->node.push_back(std::move(item.tree_->node)); }

void Json::set(const std::string& name, Json value) {
  tree_->node[name] = std::move(value.tree_->node);
}

std::size_t Json::size() const { return tree_->node.is_structured() ? tree_->node.size() : 0; }

std::vector<Json> Json::items() const {
  std::vector<Json> found;
  if (!tree_->node.is_array()) return found;
  for (const Node& item : tree_->node) found.push_back(Tree::json(item));
  return found;
}

std::vector<std::pair<std::string, Json>> Json::members() const {
  std::vector<std::pair<std::string, Json>> found;
  if (!tree_->node.is_object()) return found;
  for (const auto& [name, value] : tree_->node.items()) found.emplace_back(name, Tree::json(value));
  return found;
}

bool Json::contains(const std::string& name) const { return tree_->node.contains(name); }

Json Json::at(const std::string& name) const {
  return contains(name) ? Tree::json(tree_->node[name]) : Json();
}

std::optional<std::string> Json::text() const {
  if (!tree_->node.is_string()) return std::nullopt;
  return tree_->node.get<std::string>();
}

template <typename Value>
bool Json::read(const std::string& name, Value& value) const {
  if (!contains(name) || !holds<Value>(tree_->node[name])) return false;
  value = tree_->node[name].get<Value>();
  return true;
}

template bool Json::read(const std::string&, bool&) const;
template bool Json::read(const std::string&, int&) const;
template bool Json::read(const std::string&, std::uint64_t&) const;
template bool Json::read(const std::string&, double&) const;
template bool Json::read(const std::string&, std::string&) const;
template bool Json::read(const std::string&, std::vector<std::string>&) const;

}  // namespace attune
