#include "tests/emulator/ptx_statement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <vector>

#include "tests/emulator/text_cursor.hpp"

namespace attune::emulator {
namespace {

std::string trimmed(std::string_view text) {
  while (!text.empty() && TextCursor::is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && TextCursor::is_space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

// "a" "b\n" as the characters that they stand for.
std::string joined_text(std::string_view quoted) {
  std::string text;
  TextCursor in(quoted);
  for (in.skip_space(); !in.at_end(); in.skip_space()) {
    std::string_view one = in.take_quoted();
    one = one.substr(1, one.size() - 2);
    for (std::size_t i = 0; i < one.size(); ++i) {
      if (one[i] != '\\') {
        text += one[i];
      } else if (one[++i] == 'n') {
        text += '\n';
      } else {
        text += one[i];
      }
    }
  }
  return text;
}

struct Operand {
  char constraint;  // r, f, h, l, d or n
  bool is_output;
  bool is_read;  // before it is written, if it is
  std::string expression;
};

// `"+f"(x), "=r"(y)`
void add_operands(std::string_view list, bool are_outputs, std::vector<Operand>* operands) {
  TextCursor in(list);
  for (in.skip_space(); !in.at_end(); in.skip_space()) {
    const std::string_view constraint = in.take_quoted();
    const char kind = constraint[constraint.size() - 2];
    operands->push_back({.constraint = kind,
                         .is_output = are_outputs,
                         .is_read = !are_outputs || constraint[1] == '+',
                         .expression = std::string(in.take_parenthesised())});
    in.skip_space();
    if (in.peek() == ',') in.take();
  }
}

// A register's bits.
std::string_view storage(std::string_view type) {
  static const std::map<std::string_view, std::string_view> kTypes = {
      {"pred", "bool"},      {"b16", "::emu::u16"}, {"b32", "::emu::u32"},
      {"u32", "::emu::u32"}, {"s32", "::emu::u32"}, {"f32", "::emu::u32"},
      {"b64", "::emu::u64"}, {"u64", "::emu::u64"}, {"b128", "::emu::u128"}};
  const auto found = kTypes.find(type);
  if (found == kTypes.end()) throw std::runtime_error(fmt::format("a register of .{}", type));
  return found->second;
}

class Statement {
 public:
  Statement(std::string_view arguments, int number) : number_(number) {
    TextCursor in(arguments);
    text_ = joined_text(in.take_item(':'));
    add_operands(in.take_item(':'), true, &operands_);
    add_operands(in.take_item(':'), false, &operands_);
    is_in_place_ = text_.find("wgmma.mma_async") != std::string::npos;
  }

  std::string run() {
    if (trimmed(text_).empty()) return "{}";  // it only orders what stands about it
    std::string out = "{";
    for (std::size_t i = 0; i < operands_.size(); ++i) out += prologue(i, operands_[i]);
    out += "{" + instructions() + "}";
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      if (operands_[i].is_output && !is_in_place_)
        out += fmt::format("emu_to{0}.take(emu_{0});", i);
    }
    return out + "}";
  }

 private:
  std::string prologue(std::size_t i, const Operand& operand) const {
    if (operand.constraint == 'n') {
      return fmt::format("constexpr long long emu_{} = {};", i, operand.expression);
    }
    if (!operand.is_output) {
      return fmt::format("const auto emu_{} = ::emu::bits_{}({});", i, operand.constraint,
                         operand.expression);
    }
    if (is_in_place_) return fmt::format("auto& emu_{} = {};", i, operand.expression);
    return fmt::format("::emu::Target emu_to{0}{{{1}}}; auto emu_{0} = emu_to{0}.{2}();", i,
                       operand.expression, operand.is_read ? "bits" : "undefined");
  }

  std::string instructions() {
    std::string out;
    TextCursor in(text_);
    for (in.skip_space(); !in.at_end(); in.skip_space()) {
      if (in.peek() == '{' || in.peek() == '}') {
        out += in.take();
        continue;
      }
      if (in.peek() == '.') {
        out += registers(trimmed(in.take_until(';')));
        continue;
      }
      TextCursor ahead = in;  // `label:`
      if (ahead.is_word()) {
        const std::string_view word = ahead.take_word();
        if (ahead.peek() == ':') {
          ahead.take();
          if (ahead.peek() != ':') {
            out += fmt::format("{}_{}:;", word, number_);
            in = ahead;
            continue;
          }
        }
      }
      out += instruction(trimmed(in.take_until(';')));
    }
    return out;
  }

  // `.reg .b32 a, b`
  static std::string registers(const std::string& declaration) {
    TextCursor in(declaration);
    in.take();
    if (in.take_word() != "reg") throw std::runtime_error("unknown: " + declaration);
    in.skip_space();
    in.take();
    const std::string_view type = storage(in.take_word());
    std::string out;
    while (!in.at_end()) out += fmt::format("{} {};", type, trimmed(in.take_item(',')));
    return out;
  }

  // `@p name operands`
  std::string instruction(const std::string& whole) const {
    TextCursor in(whole);
    std::string condition;
    if (in.peek() == '@') {
      in.take();
      const bool negated = in.peek() == '!';
      if (negated) in.take();
      condition = fmt::format("if ({}{}) ", negated ? "!" : "", in.take_word());
      in.skip_space();
    }
    std::string name;
    while (!in.at_end() && !TextCursor::is_space(in.peek())) name += in.take();
    const std::string rest = trimmed(in.take_item('\0'));
    if (name == "bra") return fmt::format("{}goto {}_{};", condition, rest, number_);
    if (name.starts_with(kGroupProduct)) return condition + group_product(name, rest);
    for (char& c : name) {
      if (c == '.' || c == ':') c = '_';
    }
    return fmt::format("{}::emu::{}({});", condition, name,
                       fmt::join(arguments(rest, "list"), ", "));
  }

  // `wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16`: one function of all widths.
  static constexpr std::string_view kGroupProduct = "wgmma.mma_async.sync.aligned.m64n";
  static std::string group_product(std::string_view name, std::string_view rest) {
    TextCursor in(name.substr(kGroupProduct.size()));
    const std::string_view shape = in.take_word();  // 128k16
    const std::string_view element = name.substr(name.rfind('.') + 1);
    return fmt::format("::emu::wgmma_mma_async({}, ::emu::Element::{}, {});",
                       shape.substr(0, shape.find('k')), element,
                       fmt::join(arguments(rest, "registers"), ", "));
  }

  // `a, [b + 4, {c, d}]` as a, b + 4, list(c, d), where lists are made by `lists`.
  static std::vector<std::string> arguments(std::string_view text, std::string_view lists) {
    std::vector<std::string> all;
    TextCursor in(text);
    for (in.skip_space(); !in.at_end(); in.skip_space()) {
      const std::string one = trimmed(in.take_item(','));
      if (one == "_") continue;
      if (one.front() == '[') {
        for (std::string& part : arguments(inner(one), lists)) {
          all.push_back(std::move(part));
        }
      } else if (one.front() == '{') {
        all.push_back(
            fmt::format("::emu::{}({})", lists, fmt::join(arguments(inner(one), lists), ", ")));
      } else {
        all.push_back(value(one));
      }
    }
    return all;
  }
  static std::string_view inner(std::string_view bracketed) {
    return bracketed.substr(1, bracketed.size() - 2);
  }

  // %3 * 2 + low, 0f3F800000, %%cluster_ctarank
  static std::string value(std::string_view text) {
    std::string out;
    TextCursor in(text);
    while (!in.at_end()) {
      if (in.peek() == '%') {
        in.take();
        if (in.peek() != '%') {
          out += fmt::format("emu_{}", in.take_word());
          continue;
        }
        in.take();
        out += fmt::format("::emu::special_{}()", in.take_word());
      } else if (in.is_word()) {
        const std::string_view word = in.take_word();
        out += word.starts_with("0f") ? fmt::format("0x{}u", word.substr(2)) : std::string(word);
      } else {
        out += in.take();
      }
    }
    return out;
  }

  const int number_;
  std::string text_;
  bool is_in_place_;  // products write their registers when they are done, which is later
  std::vector<Operand> operands_;
};

}  // namespace

std::string ptx_statement(std::string_view arguments, int number) {
  return Statement(arguments, number).run();
}

}  // namespace attune::emulator
