#include "tests/emulator/translator.hpp"

#include <fmt/format.h>

#include <vector>

#include "tests/emulator/ptx_statement.hpp"
#include "tests/emulator/text_cursor.hpp"

namespace attune::emulator {
namespace {

class Translator {
 public:
  explicit Translator(std::string_view text) : in_(text) {}

  Translation run() {
    while (!in_.at_end()) {
      if (in_.is_quote()) {
        out_ += in_.take_quoted();
      } else if (in_.is_word()) {
        word(in_.take_word());
      } else {
        other(in_.take());
      }
    }
    return {out_, kernels_};
  }

 private:
  void word(std::string_view word) {
    if (word == "asm") {
      statement();
    } else if (word == "extern" && in_.next_word_is("__shared__")) {
      in_.take_word();
      dynamic_shared();
    } else if (word == "__shared__") {
      static_shared();
    } else if (word == "__launch_bounds__") {
      in_.take_parenthesised();
    } else if (word == "__global__") {
      kernel();
    } else {
      out_ += word;
    }
  }

  void other(char c) {
    out_ += c;
    if (c == '{') ++depth_;
    if (c != '}' || --depth_ != kernel_depth_) return;
    kernel_depth_ = -1;
    out_ += fmt::format(
        "\nstatic const ::emu::KernelEntry emu_entry_{0}(\"{1}\", &::emu::bound<&{1}>);\n",
        kernels_.size(), kernels_.back());
  }

  // The text of `asm volatile("..." : outputs : inputs : clobbers)`, the semicolon stays.
  void statement() {
    if (in_.next_word_is("volatile")) in_.take_word();
    out_ += ptx_statement(in_.take_parenthesised(), statements_++);
  }

  // `extern __shared__ type name[];`
  void dynamic_shared() {
    const std::string_view declaration = in_.take_until(';');
    out_ += fmt::format("unsigned char* const {} = ::emu::dynamic_shared();",
                        name_before(declaration, declaration.find('[')));
  }

  // `__shared__ type name;` or `__shared__ type name[count];`
  void static_shared() {
    const std::string_view declaration = in_.take_until(';');
    const std::size_t bracket = std::min(declaration.find('['), declaration.size());
    const std::string name = name_before(declaration, bracket);
    const std::string_view type = declaration.substr(0, declaration.rfind(name, bracket));
    out_ += fmt::format(
        "using emu_shared_{0} = {1}{2}; emu_shared_{0}& {3} = "
        "*static_cast<emu_shared_{0}*>(::emu::static_shared({0}, sizeof(emu_shared_{0}), "
        "alignof(emu_shared_{0})));",
        shared_, type, declaration.substr(bracket), name);
    ++shared_;
  }

  // Behind `__global__`: `void __launch_bounds__(...) name(`.
  void kernel() {
    std::string_view found;
    while (in_.skip_space(), in_.peek() != '(') {
      const std::string_view word = in_.take_word();
      if (word == "__launch_bounds__") {
        in_.take_parenthesised();
        continue;
      }
      found = word;
      out_ += fmt::format("{} ", word);
    }
    kernels_.emplace_back(found);
    kernel_depth_ = depth_;
  }

  static std::string name_before(std::string_view text, std::size_t end) {
    const std::size_t last = text.find_last_not_of(" \n", std::min(end, text.size()) - 1);
    std::size_t first = last + 1;
    while (first > 0 && TextCursor::is_word_letter(text[first - 1])) --first;
    return std::string(text.substr(first, last + 1 - first));
  }

  TextCursor in_;
  std::string out_;
  int statements_ = 0;
  int shared_ = 0;
  std::vector<std::string> kernels_;
  int depth_ = 0;          // of braces
  int kernel_depth_ = -1;  // behind the kernel that is being read
};

}  // namespace

Translation translate(std::string_view preprocessed) { return Translator(preprocessed).run(); }

}  // namespace attune::emulator
