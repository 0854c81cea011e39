#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "generator/expr/gradient_check.hpp"
#include "generator/expr/lowering.hpp"
#include "generator/expr/parser.hpp"
#include "generator/spec/environment.hpp"
#include "generator/spec/limits.hpp"
#include "generator/spec/spec.hpp"
#include "generator/spec/spec_reader.hpp"
#include "generator/spec/tune_section.hpp"
#include "generator/support/suggest.hpp"

namespace attune {
namespace {

constexpr KeyRule kSpecKeys[] = {
    {"attune", true},   {"name", true}, {"dtype", true},
    {"head_dim", true}, {"target"},     {"layout"},
    {"scalars"},        {"tensors"},    {"mask"},
    {"score"},          {"sink"},       {"softmax_scale"},
    {"dropout"},        {"passes"},     {"deterministic"},
    {"tune"},           {"precision"},  {"batch_invariant"},
    {"kv_dtype"},       {"v_in_k"},     {"shared_prefixes"},
    {"accuracy"},
};

class SpecParser {
 public:
  SpecParser(const SpecReader& reader, const YamlNode& root) : reader_(reader), root_(root) {}

  Result<AttentionSpec> parse() {
    // A file of another version may well have other keys; say the one thing that helps.
    if (const YamlEntry* version = root_.find("attune")) ATT_CHECK(check_version(version->value));
    ATT_CHECK(reader_.check_keys(root_, "the spec", kSpecKeys));
    ATT_CHECK(read_name());
    ATT_CHECK(read_dtype());
    ATT_CHECK(read_precision());
    ATT_CHECK(read_v_in_k());
    ATT_CHECK(read_head_dim());
    ATT_CHECK(check_v_in_k());
    ATT_CHECK(read_kv_dtype());
    ATT_CHECK(read_accuracy());
    ATT_CHECK(read_targets());
    ATT_CHECK(read_layout());
    ATT_TRY(spec_.environment, read_environment(reader_, value("scalars"), value("tensors")));
    spec_.environment.is_packed = is_packed(spec_);
    spec_.environment.is_paged = is_paged(spec_);
    ATT_CHECK(read_samples());
    ATT_CHECK(read_expressions());
    ATT_CHECK(check_packed());
    ATT_CHECK(read_softmax_scale());
    ATT_CHECK(read_dropout());
    ATT_CHECK(read_passes());
    ATT_CHECK(check_cache());
    ATT_CHECK(read_deterministic());
    ATT_CHECK(read_batch_invariant());
    ATT_CHECK(read_shared_prefixes());
    ATT_CHECK(check_gradients());
    if (const YamlNode* tune = value("tune")) ATT_CHECK(read_tune_section(reader_, *tune, spec_));
    return std::move(spec_);
  }

 private:
  // The value of a top-level key, or null.
  const YamlNode* value(std::string_view key) const {
    const YamlEntry* entry = root_.find(key);
    return entry ? &entry->value : nullptr;
  }

  Status check_version(const YamlNode& node) {
    if (node.kind == YamlNode::Kind::kScalar && node.plain && node.text == "1") return ok_status();
    return reader_.error(
        node, "spec-version",
        fmt::format("schema version {} is not known", node.kind == YamlNode::Kind::kScalar
                                                          ? quoted(node.text)
                                                          : std::string(describe(node.kind))),
        "this release reads `attune: 1`");
  }

  Status read_name() {
    const YamlNode& node = *value("name");
    ATT_TRY(const std::string_view name, reader_.text("name", node));
    ATT_CHECK(reader_.check_name("a spec", node));
    spec_.name = name;
    return ok_status();
  }

  Status read_dtype() {
    constexpr std::string_view kWords[] = {"fp16", "bf16", "fp32", "fp8_e4m3"};
    ATT_TRY(const std::size_t index, reader_.choice("dtype", *value("dtype"), kWords));
    spec_.dtype = static_cast<DType>(index);
    return ok_status();
  }

  Status read_precision() {
    const YamlNode* node = value("precision");
    if (!node) return ok_status();
    constexpr std::string_view kWords[] = {"strict", "tf32"};
    ATT_TRY(const std::size_t index, reader_.choice("precision", *node, kWords));
    if (spec_.dtype != DType::kF32) {
      return reader_.error(
          *node, "spec-precision",
          fmt::format("`precision` is fp32's, and `dtype` is {}", to_string(spec_.dtype)),
          "the products of other dtypes have one precision: leave it out");
    }
    spec_.precision = static_cast<Precision>(index);
    return ok_status();
  }

  // Before the head dims, which may be wider with it.
  Status read_v_in_k() {
    const YamlNode* node = value("v_in_k");
    if (!node) return ok_status();
    ATT_TRY(spec_.v_in_k, reader_.boolean("v_in_k", *node));
    return ok_status();
  }

  Status check_v_in_k() {
    if (!spec_.v_in_k || spec_.head_dim_v <= spec_.head_dim_qk) return ok_status();
    return reader_.error(*value("v_in_k"), "spec-v-in-k",
                         fmt::format("V of {} columns cannot be the first columns of K, which has "
                                     "{}",
                                     spec_.head_dim_v, spec_.head_dim_qk),
                         "with `v_in_k` head_dim's v is at most qk");
  }

  Result<int> read_one_head_dim(std::string_view key, const YamlNode& node) {
    const int widest = !spec_.v_in_k ? kMaxHeadDim
                       : key == "v"  ? kMaxSharedHeadDimV
                                     : kMaxSharedHeadDimQk;
    ATT_TRY(const std::int64_t size, reader_.integer(key, node, kMinHeadDim, widest));
    if (size % kHeadDimStep != 0) {
      return reader_.error(
          node, "spec-head-dim",
          fmt::format("`{}` is {}, not a multiple of {}", key, size, kHeadDimStep));
    }
    return static_cast<int>(size);
  }

  Status read_head_dim() {
    const YamlNode& node = *value("head_dim");
    if (node.kind == YamlNode::Kind::kMapping) {
      constexpr KeyRule kRules[] = {{"qk", true}, {"v", true}};
      ATT_CHECK(reader_.check_keys(node, "`head_dim`", kRules));
      ATT_TRY(spec_.head_dim_qk, read_one_head_dim("qk", node.find("qk")->value));
      ATT_TRY(spec_.head_dim_v, read_one_head_dim("v", node.find("v")->value));
      return ok_status();
    }
    if (node.kind == YamlNode::Kind::kSequence)
      return reader_.wrong_type("head_dim", node, "a number or {qk, v}");
    ATT_TRY(spec_.head_dim_qk, read_one_head_dim("head_dim", node));
    spec_.head_dim_v = spec_.head_dim_qk;
    return ok_status();
  }

  // Behind the head dims, which rows of bytes allow fewer of.
  Status read_kv_dtype() {
    const YamlNode* node = value("kv_dtype");
    if (!node) return ok_status();
    constexpr std::string_view kWords[] = {"fp8_e4m3"};
    ATT_CHECK(reader_.choice("kv_dtype", *node, kWords));
    if (spec_.dtype != DType::kF16 && spec_.dtype != DType::kBf16) {
      return reader_.error(*node, "spec-kv-dtype",
                           fmt::format("keys in fp8 go with queries of 16 bits, and `dtype` is {}",
                                       to_string(spec_.dtype)),
                           "`dtype` is fp16 or bf16 then");
    }
    for (const int dim : {spec_.head_dim_qk, spec_.head_dim_v}) {
      if (dim % kFp8HeadDimStep == 0) continue;
      return reader_.error(
          *node, "spec-head-dim",
          fmt::format("a head of {} elements of fp8 is no multiple of 16 bytes", dim),
          "with `kv_dtype` head dims are multiples of 16");
    }
    spec_.kv_dtype = DType::kFp8E4m3;
    if (spec_.v_in_k) {
      return not_yet(reader_.error(*node, "spec-not-yet",
                                   "`kv_dtype` with `v_in_k` is not supported yet",
                                   "leave one of them out"));
    }
    return ok_status();
  }

  Status read_accuracy() {
    const YamlNode* node = value("accuracy");
    if (!node) return ok_status();
    constexpr std::string_view kWords[] = {"fast", "strict", "relaxed"};
    ATT_TRY(const std::size_t index, reader_.choice("accuracy", *node, kWords));
    if (spec_.dtype != DType::kF16 && spec_.dtype != DType::kBf16) {
      return reader_.error(*node, "spec-accuracy",
                           fmt::format("`accuracy` is of exponentials in 16 bits, and `dtype` is "
                                       "{}",
                                       to_string(spec_.dtype)),
                           "leave it out: `precision` is fp32's");
    }
    spec_.accuracy = static_cast<Accuracy>(index);
    if (spec_.accuracy != Accuracy::kStrict) return ok_status();
    for (const auto& [is_there, key] :
         {std::pair{spec_.v_in_k, "v_in_k"}, std::pair{has_scaled_cache(spec_), "kv_dtype"}}) {
      if (!is_there) continue;
      return not_yet(
          reader_.error(*node, "spec-not-yet",
                        fmt::format("`accuracy: strict` with `{}` is not supported yet", key),
                        "leave one of them out"));
    }
    return ok_status();
  }

  // A cache is read by the forward pass alone.
  Status check_cache() {
    const bool has_backward =
        std::ranges::find(spec_.passes, Pass::kBackward) != spec_.passes.end();
    if (spec_.v_in_k && has_backward) {
      return not_yet(reader_.error(*value("passes"), "spec-not-yet",
                                   "the backward pass with `v_in_k` is not supported yet",
                                   "leave `backward` or `v_in_k` out"));
    }
    if (has_scaled_cache(spec_) && has_backward) {
      return reader_.error(*value("passes"), "spec-kv-dtype",
                           "`kv_dtype` is of a cache that is read, and the backward pass has none",
                           "leave `backward` or `kv_dtype` out");
    }
    return ok_status();
  }

  Status read_targets() {
    const YamlNode* node = value("target");
    if (!node) return ok_status();
    std::vector<std::string_view> words;
    for (const Target target : kTargets) words.push_back(to_string(target));
    ATT_TRY(const auto items, reader_.list("target", *node));
    for (const YamlNode& item : items) {
      ATT_TRY(const std::size_t index, reader_.choice("target", item, words));
      if (std::ranges::find(spec_.targets, kTargets[index]) != spec_.targets.end()) {
        return reader_.error(item, "spec-duplicate-value",
                             fmt::format("target `{}` is given twice", item.text));
      }
      spec_.targets.push_back(kTargets[index]);
    }
    return ok_status();
  }

  Status read_layout() {
    const YamlNode* node = value("layout");
    if (!node) return ok_status();
    constexpr std::string_view kWords[] = {"bshd", "bhsd", "thd", "paged"};
    ATT_TRY(const std::size_t index, reader_.choice("layout", *node, kWords));
    spec_.layout = static_cast<Layout>(index);
    return ok_status();
  }

  static Error not_yet(Error error) {
    error.kind = ErrorKind::kUnsupported;
    return error;
  }

  // What the kernels of packed sequences cannot do yet.
  Status check_packed() {
    if (!is_packed(spec_)) return ok_status();
    // Empty sequences have a sink, and look-ups are proven for one key at least.
    if (spec_.sink && (expr::depends_on(spec_.sink, expr::Variable::kQLen) ||
                       expr::depends_on(spec_.sink, expr::Variable::kKvLen))) {
      return not_yet(reader_.error(*value("sink"), "spec-not-yet",
                                   fmt::format("a sink that depends on a length is not supported "
                                               "with layout `{}` yet",
                                               to_string(spec_.layout)),
                                   "a tensor with dims [batch] may hold what it depends on"));
    }
    return ok_status();
  }

  Status read_samples() {
    for (const expr::TensorDecl& tensor : spec_.environment.tensors) {
      const YamlEntry* sample = value("tensors")->find(tensor.name)->value.find("sample");
      spec_.samples.emplace_back();
      if (!sample) continue;
      ATT_TRY(const std::string_view text, reader_.text("sample", sample->value));
      auto parsed = parse_sample(text, tensor);
      if (!parsed.ok()) {
        return reader_.error(sample->value, std::move(parsed.error().id),
                             std::move(parsed.error().message), std::move(parsed.error().hint));
      }
      spec_.samples.back() = *std::move(parsed);
    }
    return ok_status();
  }

  Result<expr::Expr> read_expression(std::string_view key, expr::Role role) {
    const YamlNode* node = value(key);
    if (!node) return expr::Expr();
    if (node->kind != YamlNode::Kind::kScalar) {
      return reader_.error(
          *node, "spec-type",
          fmt::format("`{}` must be an expression, found {}", key, describe(node->kind)),
          "put an expression that starts with `[` or `{` into quotes");
    }
    const std::vector<SourceSpan> positions = scalar_positions(reader_.source(), *node);
    const expr::SourceOrigin origin{.file = std::string(reader_.source().file),
                                    .line = positions.front().line,
                                    .column = positions.front().column,
                                    .continuation_column = 1,
                                    .whole_file = reader_.source().text,
                                    .positions = positions};
    auto expression = expr::parse(node->text, spec_.environment, role, origin);
    if (!expression.ok() && expression.error().source_line.size() > kMaxShownLine) {
      expression.error().source_line.clear();
    }
    return expression;
  }

  // What changes nothing is left out, so that kernels and hashes do not see it.
  Status read_expressions() {
    ATT_TRY(spec_.mask, read_expression("mask", expr::Role::kMask));
    ATT_TRY(spec_.score, read_expression("score", expr::Role::kScore));
    ATT_TRY(spec_.sink, read_expression("sink", expr::Role::kSink));
    if (spec_.mask && spec_.mask->op == expr::Op::kBool && spec_.mask->int_value != 0)
      spec_.mask = nullptr;
    if (spec_.score && spec_.score->op == expr::Op::kVariable &&
        spec_.score->variable == expr::Variable::kScore)
      spec_.score = nullptr;
    return ok_status();
  }

  static bool is_word(const YamlNode& node, std::string_view word) {
    return node.kind == YamlNode::Kind::kScalar && node.plain && node.text == word;
  }

  Status read_softmax_scale() {
    const YamlNode* node = value("softmax_scale");
    spec_.softmax_scale.value = 1 / std::sqrt(static_cast<double>(spec_.head_dim_qk));
    if (!node || is_word(*node, "auto")) return ok_status();
    if (is_word(*node, "float")) {
      spec_.softmax_scale = {.at_launch = true};
      return ok_status();
    }
    ATT_TRY(spec_.softmax_scale.value, reader_.real("softmax_scale", *node));
    if (spec_.softmax_scale.value <= 0) {
      return reader_.error(*node, "spec-out-of-range",
                           fmt::format("`softmax_scale` is {}, not above 0", quoted(node->text)),
                           "change signs in `score`");
    }
    return ok_status();
  }

  Status read_dropout() {
    const YamlNode* node = value("dropout");
    if (!node) return ok_status();
    if (node->kind != YamlNode::Kind::kMapping) return read_probability("dropout", *node);
    constexpr KeyRule kRules[] = {{"p", true}, {"seed", true}};
    constexpr std::string_view kWords[] = {"launch", "device"};
    ATT_CHECK(reader_.check_keys(*node, "`dropout`", kRules));
    ATT_CHECK(read_probability("p", node->find("p")->value));
    const YamlNode& seed = node->find("seed")->value;
    ATT_TRY(const std::size_t index, reader_.choice("seed", seed, kWords));
    spec_.seed_on_device = index == 1;
    if (!spec_.seed_on_device || has_dropout(spec_)) return ok_status();
    return reader_.error(seed, "spec-dropout",
                         "a seed on the device is given, and `p` is 0: nothing is dropped",
                         "leave `dropout` out");
  }

  // Of dropping an element; `key` is where it stands.
  Status read_probability(std::string_view key, const YamlNode& node) {
    if (is_word(node, "float")) {
      spec_.dropout = {.at_launch = true};
      return ok_status();
    }
    ATT_TRY(const double dropout, reader_.real(key, node));
    if (!(dropout >= 0 && dropout < 1)) {
      return reader_.error(node, "spec-out-of-range",
                           fmt::format("`{}` is {}, not in 0 to 1", key, quoted(node.text)));
    }
    // Kernels compare one random byte with round(256 p).
    const long drop_below = std::lround(dropout * 256);
    if (dropout > 0 && drop_below == 0) {
      return reader_.error(
          node, "spec-dropout",
          fmt::format("`{}` is {}, which would drop nothing", key, quoted(node.text)),
          "dropout has steps of 1/256: give 0, or 1/512 and more");
    }
    if (drop_below == 256) {
      return reader_.error(
          node, "spec-dropout",
          fmt::format("`{}` is {}, which would drop everything", key, quoted(node.text)),
          "dropout has steps of 1/256: the largest is 255/256");
    }
    spec_.dropout.value = dropout;
    return ok_status();
  }

  Status read_passes() {
    const YamlNode* node = value("passes");
    if (!node) return ok_status();
    constexpr std::string_view kWords[] = {"forward", "backward"};
    ATT_TRY(const auto items, reader_.list("passes", *node));
    spec_.passes.clear();
    for (const YamlNode& item : items) {
      ATT_TRY(const std::size_t index, reader_.choice("passes", item, kWords));
      const Pass pass = static_cast<Pass>(index);
      if (std::ranges::find(spec_.passes, pass) != spec_.passes.end()) {
        return reader_.error(item, "spec-duplicate-value",
                             fmt::format("pass `{}` is given twice", item.text));
      }
      spec_.passes.push_back(pass);
    }
    std::ranges::sort(spec_.passes);
    return ok_status();
  }

  Status read_deterministic() {
    const YamlNode* node = value("deterministic");
    if (!node) return ok_status();
    ATT_TRY(spec_.deterministic, reader_.boolean("deterministic", *node));
    return ok_status();
  }

  Status read_batch_invariant() {
    const YamlNode* node = value("batch_invariant");
    if (!node) return ok_status();
    ATT_TRY(spec_.batch_invariant, reader_.boolean("batch_invariant", *node));
    if (spec_.batch_invariant &&
        std::ranges::find(spec_.passes, Pass::kBackward) != spec_.passes.end()) {
      return reader_.error(*node, "spec-batch-invariant",
                           "`batch_invariant` is of the forward pass, and `passes` has `backward`");
    }
    if (spec_.batch_invariant && has_scaled_cache(spec_)) {
      return not_yet(reader_.error(*node, "spec-not-yet",
                                   "`batch_invariant` with `kv_dtype` is not supported yet",
                                   "leave one of them out"));
    }
    return ok_status();
  }

  Status read_shared_prefixes() {
    const YamlNode* node = value("shared_prefixes");
    if (!node) return ok_status();
    ATT_TRY(spec_.shared_prefixes, reader_.boolean("shared_prefixes", *node));
    if (!spec_.shared_prefixes) return ok_status();
    if (!is_paged(spec_)) {
      return reader_.error(*node, "spec-shared-prefixes",
                           fmt::format("`shared_prefixes` is of pages that sequences share, and "
                                       "`layout` is `{}`",
                                       to_string(spec_.layout)),
                           "use `layout: paged`");
    }
    for (const auto& [is_there, key] : {std::pair{spec_.batch_invariant, "batch_invariant"},
                                        std::pair{has_scaled_cache(spec_), "kv_dtype"}}) {
      if (is_there) {
        return not_yet(
            reader_.error(*node, "spec-not-yet",
                          fmt::format("`shared_prefixes` with `{}` is not supported yet", key),
                          "leave one of them out"));
      }
    }
    return ok_status();
  }

  Status check_gradients() {
    const bool has_backward =
        std::ranges::find(spec_.passes, Pass::kBackward) != spec_.passes.end();
    auto problem = expr::gradient_problem(spec_.mask, spec_.score, spec_.sink, spec_.environment,
                                          has_backward);
    if (!problem) return ok_status();
    SourceSpan span = problem->span;
    if (problem->unread_slot >= 0) {
      const auto slot = static_cast<std::size_t>(problem->unread_slot);
      span = value("tensors")->find(spec_.environment.tensors[slot].name)->key.span;
    }
    return reader_.source().error("expr-no-derivative", span, std::move(problem->message),
                                  std::move(problem->hint));
  }

  const SpecReader& reader_;
  const YamlNode& root_;
  AttentionSpec spec_;
};

}  // namespace

Result<AttentionSpec> parse_spec(std::string_view yaml, std::string_view file) {
  yaml = without_byte_order_mark(yaml);
  const SpecSource source{.text = yaml, .file = file};
  ATT_TRY(const YamlNode root, parse_yaml(source));
  const SpecReader reader(source);
  return SpecParser(reader, root).parse();
}

}  // namespace attune
