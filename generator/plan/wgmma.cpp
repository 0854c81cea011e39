#include "generator/plan/wgmma.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace attune {
namespace {

// "%0, %1, ..." of `count` operands.
std::string operands(int first, int count) {
  std::vector<std::string> names;
  for (int i = first; i < first + count; ++i) names.push_back(fmt::format("%{}", i));
  return fmt::format("{}", fmt::join(names, ", "));
}

// Of the 128-byte swizzle, 1024 bytes between groups of 8 rows.
constexpr std::string_view kHighWord = "0x40000040";

// Sets the register `name` to the descriptor of a step.
std::string descriptor(std::string_view name, int step, int low, int step_stride, int four_stride) {
  return fmt::format(
      "      \"add.u32 low, %{}, %{} * {} + %{} * {};\\nmov.b64 {}, {{low, {}}};\\n\"\n", low,
      step_stride, step % 4, four_stride, step / 4, name, kHighWord);
}

}  // namespace

std::string_view wgmma_element(DType dtype) { return dtype == DType::kBf16 ? "bf16" : "f16"; }

std::string wgmma_function(const WgmmaChain& chain) {
  const int registers = chain.columns / 2;
  const int a = registers;  // the number of A's first operand; then B's and the strides'
  const int b = a + (chain.a_in_registers ? 4 * chain.steps : 1);
  const int b_step = b + 1, b_four = b + 2, a_step = b + 3, a_four = b + 4;

  std::string text;
  for (int step = 0; step < chain.steps; ++step) {
    if (step == 1 && !chain.accumulates) text += "      \"setp.ne.b32 p, 1, 0;\\n\"\n";
    if (!chain.a_in_registers) text += descriptor("a", step, a, a_step, a_four);
    text += descriptor("b", step, b, b_step, b_four);
    text += fmt::format(
        "      \"wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} {{{}}}, {}, b, p, 1, 1, "
        "{}{};\\n\"\n",
        chain.columns, chain.element, chain.element, operands(0, registers),
        chain.a_in_registers ? fmt::format("{{{}}}", operands(a + 4 * step, 4)) : "a",
        chain.a_in_registers ? ""
        : chain.transposes_a ? "1, "
                             : "0, ",
        chain.transposes_b ? 1 : 0);
  }

  const bool keeps = chain.accumulates || chain.keeps_registers;
  std::vector<std::string> outputs, inputs;
  for (int i = 0; i < registers; ++i) {
    outputs.push_back(fmt::format("\"{}f\"(d[{}])", keeps ? '+' : '=', i));
  }
  if (!chain.a_in_registers) inputs.emplace_back("\"r\"(a)");
  for (int i = 0; chain.a_in_registers && i < 4 * chain.steps; ++i) {
    inputs.push_back(fmt::format("\"r\"(a[{}][{}])", i / 4, i % 4));
  }
  return fmt::format(
      "template <int kBStep, int kBFour, int kAStep = 0, int kAFour = 0>\n"
      "ATT_FN void {}(float (&d)[{}], {}, unsigned b) {{\n"
      "  asm volatile(\n"
      "      \"{{\\n.reg .b64 a, b;\\n.reg .b32 low;\\n.reg .pred p;\\nsetp.ne.b32 p, {}, 0;\\n\"\n"
      "{}"
      "      \"}}\"\n"
      "      : {}\n"
      "      : {}, \"r\"(b), \"n\"(kBStep), \"n\"(kBFour), \"n\"(kAStep), \"n\"(kAFour));\n"
      "}}\n",
      chain.name, registers,
      chain.a_in_registers ? fmt::format("const unsigned (&a)[{}][4]", chain.steps) : "unsigned a",
      chain.accumulates ? 1 : 0, text, fmt::join(outputs, ", "), fmt::join(inputs, ", "));
}

std::string wgmma_split_function(std::string_view name, int columns, bool a_in_registers) {
  const int registers = columns / 2;
  std::vector<std::string> outputs;
  for (int i = 0; i < registers; ++i) outputs.push_back(fmt::format("\"+f\"(d[{}])", i));
  // In the high words, how far groups of eight rows are apart: 0 and 128 bytes.
  const std::string a = a_in_registers ? fmt::format("{{%{0}, %{0}, %{0}, %{0}}}", registers) : "a";
  return fmt::format(
      "ATT_FN void {}(float (&d)[{}], unsigned a, unsigned b) {{\n"
      "  asm volatile(\n"
      "      \"{{\\n.reg .b64 a, b;\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\n\"\n"
      "      \"mov.b64 a, {{%{}, 0}};\\nmov.b64 b, {{%{}, 8}};\\n\"\n"
      "      \"wgmma.mma_async.sync.aligned.m64n{}k16.f32.bf16.bf16 {{{}}}, {}, b, p, 1, 1, {}"
      "0;\\n}}\"\n"
      "      : {}\n"
      "      : \"r\"(a), \"r\"(b));\n"
      "}}\n",
      name, registers, registers, registers + 1, columns, operands(0, registers), a,
      a_in_registers ? "" : "0, ", fmt::join(outputs, ", "));
}

}  // namespace attune
