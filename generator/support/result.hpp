// Result<T>: a value or an Error. Attune throws nothing; exceptions of libraries end at the file
// that calls them.
#pragma once

#include <cassert>
#include <utility>
#include <variant>

#include "generator/support/error.hpp"

namespace attune {

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // Precondition for each: ok().
  T& value() & { return check(), std::get<0>(state_); }
  const T& value() const& { return check(), std::get<0>(state_); }
  T&& value() && { return check(), std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Precondition: !ok().
  Error& error() & { return assert(!ok()), std::get<1>(state_); }
  const Error& error() const& { return assert(!ok()), std::get<1>(state_); }
  Error&& error() && { return assert(!ok()), std::get<1>(std::move(state_)); }

 private:
  void check() const { assert(ok()); }
  std::variant<T, Error> state_;
};

// The Result of something that yields nothing.
struct Unit {};
using Status = Result<Unit>;
inline Status ok_status() { return Unit{}; }

}  // namespace attune

// ATT_TRY(auto x, f()): x = value of f(), or return its error from the enclosing function.
#define ATT_CONCAT_(a, b) a##b
#define ATT_CONCAT(a, b) ATT_CONCAT_(a, b)
#define ATT_TRY(declaration, expression) \
  ATT_TRY_(ATT_CONCAT(att_result_, __LINE__), declaration, expression)
#define ATT_TRY_(result, declaration, expression)     \
  auto result = (expression);                         \
  if (!result.ok()) return std::move(result).error(); \
  declaration = std::move(result).value()
// ATT_CHECK(f()): return f()'s error, if any, from the enclosing function.
#define ATT_CHECK(expression) ATT_CHECK_(ATT_CONCAT(att_status_, __LINE__), expression)
#define ATT_CHECK_(status, expression) \
  if (auto status = (expression); !status.ok()) return std::move(status).error()
