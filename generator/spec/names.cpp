// The words of the schema's enumerations.

#include "generator/spec/spec.hpp"

namespace attune {

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return "fp16";
    case DType::kBf16:
      return "bf16";
    case DType::kF32:
      return "fp32";
    case DType::kFp8E4m3:
      return "fp8_e4m3";
  }
  return "";
}

std::string_view to_string(Target target) {
  switch (target) {
    case Target::kSm80:
      return "sm_80";
    case Target::kSm86:
      return "sm_86";
    case Target::kSm89:
      return "sm_89";
    case Target::kSm90a:
      return "sm_90a";
    case Target::kSm100:
      return "sm_100";
    case Target::kSm120:
      return "sm_120";
    case Target::kCpu:
      return "cpu";
  }
  return "";
}

std::string_view to_string(Layout layout) {
  switch (layout) {
    case Layout::kBshd:
      return "bshd";
    case Layout::kBhsd:
      return "bhsd";
    case Layout::kThd:
      return "thd";
    case Layout::kPaged:
      break;
  }
  return "paged";
}

std::string_view to_string(Precision precision) {
  return precision == Precision::kStrict ? "strict" : "tf32";
}

std::string_view to_string(Accuracy accuracy) {
  switch (accuracy) {
    case Accuracy::kFast:
      return "fast";
    case Accuracy::kStrict:
      return "strict";
    case Accuracy::kRelaxed:
      break;
  }
  return "relaxed";
}

std::string_view to_string(Pass pass) { return pass == Pass::kForward ? "forward" : "backward"; }

std::optional<Target> target_from_string(std::string_view text) {
  for (const Target target : kTargets) {
    if (to_string(target) == text) return target;
  }
  return std::nullopt;
}

std::optional<Pass> pass_from_string(std::string_view text) {
  for (const Pass pass : kPasses) {
    if (to_string(pass) == text) return pass;
  }
  return std::nullopt;
}

int element_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBf16:
      return 2;
    case DType::kFp8E4m3:
      return 1;
  }
  return 0;
}

}  // namespace attune
