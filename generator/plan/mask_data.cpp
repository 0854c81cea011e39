#include "generator/plan/mask_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "generator/plan/mask_tensors.hpp"
#include "generator/spec/shape.hpp"
#include "generator/support/hash.hpp"

namespace attune {
namespace {

constexpr std::int32_t kTile = 128;
constexpr std::int32_t kSampled = 16;  // tiles along each side
constexpr std::size_t kLookedAt = 8;   // entries of the batch and heads

std::string given_label(const expr::TensorValues& given) {
  const std::string_view bytes(reinterpret_cast<const char*>(given.values.data()),
                               given.values.size() * sizeof(double));
  return "given " + hash128_hex(bytes).substr(0, 8);
}

std::string label_of(const AttentionSpec& spec, const std::vector<int>& slots) {
  std::string label;
  for (const int slot : slots) {
    const Sample sample = sample_of(spec, static_cast<std::size_t>(slot));
    if (sample.kind == SampleKind::kUnsaid) continue;
    label += fmt::format(
        "{}t{}={}", label.empty() ? "" : "; ", slot,
        sample.kind == SampleKind::kGiven ? given_label(*sample.given) : to_string(sample));
  }
  return label;
}

// The first position of each of at most kSampled tiles.
std::vector<std::int32_t> sampled(std::int64_t length) {
  const auto tiles = static_cast<std::int32_t>((length + kTile - 1) / kTile);
  const std::int32_t count = std::min(tiles, kSampled);
  std::vector<std::int32_t> begins;
  for (std::int32_t i = 0; i < count; ++i)
    begins.push_back((2 * i + 1) * tiles / (2 * count) * kTile);
  return begins;
}

// Of `data`, its shares.
void count_tiles(const AttentionSpec& spec, const ProblemShape& shape, MaskData& data) {
  const auto scalars = constant_scalars(spec);
  if (!scalars) return;
  const auto tensors =
      MaskTensors::draw(spec.mask, spec.environment.tensors, samples_of(spec), shape);
  if (tensors == nullptr) return;
  const expr::TileClassifier classify(spec.mask);
  expr::TileBox box;
  box.q_len = static_cast<std::int32_t>(shape.q_len);
  box.kv_len = static_cast<std::int32_t>(shape.kv_len);
  box.scalars = *scalars;
  box.tensor_range = tensors->range();
  double live = 0, full = 0, all = 0;
  for (const MaskEntry& entry : tensors->entries(kLookedAt)) {
    std::tie(box.b, box.h, box.h_kv) = std::tie(entry.b, entry.h, entry.h_kv);
    for (const std::int32_t q : sampled(shape.q_len)) {
      for (const std::int32_t k : sampled(shape.kv_len)) {
        box.q0 = q;
        box.q1 = std::min(q + kTile, box.q_len);
        box.k0 = k;
        box.k1 = std::min(k + kTile, box.kv_len);
        const expr::TileClass tile = classify(box);
        live += tile != expr::TileClass::kSkip;
        full += tile == expr::TileClass::kFull;
        ++all;
      }
    }
  }
  data.live = live / all;
  data.full = full / all;
}

// Two more kinds of a tensor beside the one that is drawn when nothing is said.
std::vector<std::string> other_kinds(const expr::TensorDecl& tensor, const ProblemShape& shape) {
  const expr::DimSize last = tensor.dims.empty() ? expr::DimSize{} : tensor.dims.back();
  const bool is_length =
      last.is_plain() && (last.dim == expr::Dim::kQLen || last.dim == expr::Dim::kKvLen);
  const std::int64_t length = is_length ? dim_size(last, shape) : 0;
  switch (tensor.type) {
    case expr::TensorType::kInt32:
      if (length == 0) return {"lengths(0.02, 0.2)", "lengths(0.8, 1)"};
      return {fmt::format("segments({})", std::max<std::int64_t>(1, length / 64)),
              fmt::format("uniform(0, {})", shape.kv_len)};
    case expr::TensorType::kBool:
      return {"chance(0.1)", "chance(0.5)"};
    default:
      return {"normal(deviation=0.1)", "normal(deviation=2)"};
  }
}

// The same of another size: parts twice as long, the longer half of lengths, and so on.
Sample of_other_size(Sample sample) {
  auto& [first, second] = sample.arguments;
  switch (sample.kind) {
    case SampleKind::kSegments:
      first *= 2;
      break;
    case SampleKind::kLengths:
      first = (first + second) / 2;
      break;
    case SampleKind::kSubtreeEnds:
    case SampleKind::kAncestors:
      first = 1 + 2 * (first - 1);
      break;
    case SampleKind::kChance:
      first = std::min(1.0, 2 * first);
      break;
    default:
      break;
  }
  return sample;
}

Sample skewed(Sample sample) {
  sample.skewed = may_be_skewed(sample.kind);
  return sample;
}

Sample another(Sample sample) {
  sample.another = is_random(sample.kind);
  return sample;
}

// Whether something is said of all that decides the mask, and nothing of it is given.
bool is_described(const AttentionSpec& spec) {
  return std::ranges::all_of(expr::telling_slots(spec.mask), [&](int slot) {
    const SampleKind kind = sample_of(spec, static_cast<std::size_t>(slot)).kind;
    return kind != SampleKind::kUnsaid && kind != SampleKind::kGiven;
  });
}

// `of`, which is `described` or a variation of it, with its samples varied; nothing where they
// stay what they are.
std::optional<VariedSpec> varied_spec(const AttentionSpec& described, const AttentionSpec& of,
                                      const ProblemShape& shape, Sample (*vary)(Sample)) {
  VariedSpec one{.spec = of, .data = {}};
  for (const int slot : expr::telling_slots(of.mask)) {
    Sample& sample = one.spec.samples[static_cast<std::size_t>(slot)];
    sample = vary(sample);
  }
  if (one.spec.samples == of.samples) return std::nullopt;
  one.data = mask_data(one.spec, shape);
  one.data.label = mask_data(described, shape).label + std::string(kVariationMark) + one.data.label;
  return one;
}

}  // namespace

MaskData tensor_data(const AttentionSpec& spec, const ProblemShape& shape) {
  const std::vector<int> slots = expr::telling_slots(spec.mask);
  if (slots.empty()) return {};
  MaskData data{.label = label_of(spec, slots)};
  count_tiles(spec, typical_shape(spec, shape), data);
  return data;
}

MaskData mask_data(const AttentionSpec& spec, const ProblemShape& shape) {
  MaskData data = tensor_data(spec, shape);
  add_lengths(lengths_label(spec), drawn_class(spec, shape), data);
  return data;
}

void add_lengths(const std::string& label, const LengthClass& lengths, MaskData& data) {
  if (!label.empty()) data.label += (data.label.empty() ? "" : "; ") + label;
  data.lengths = lengths;
}

MaskData said_data(const AttentionSpec& spec, const ProblemShape& shape) {
  const auto is_said = [](const Sample& sample) { return sample.kind != SampleKind::kUnsaid; };
  const bool says = std::ranges::any_of(spec.samples, is_said) || !lengths_label(spec).empty();
  return says ? mask_data(spec, shape) : MaskData{};
}

std::vector<AttentionSpec> plausible_specs(const AttentionSpec& spec, const ProblemShape& shape) {
  std::vector<AttentionSpec> specs = {spec};
  for (const int slot : expr::telling_slots(spec.mask)) {
    const auto at = static_cast<std::size_t>(slot);
    if (sample_of(spec, at).kind != SampleKind::kUnsaid) continue;
    const expr::TensorDecl& tensor = spec.environment.tensors[at];
    const std::vector<std::string> kinds = other_kinds(tensor, shape);
    specs.resize(1 + kinds.size(), spec);
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      specs[i + 1].samples.resize(spec.environment.tensors.size());
      specs[i + 1].samples[at] = *parse_sample(kinds[i], tensor);
    }
  }
  return specs;
}

std::vector<VariedSpec> varied_specs(const AttentionSpec& spec, const ProblemShape& shape) {
  if (!is_described(spec)) return {};
  std::vector<VariedSpec> varied;
  for (const auto& vary : {skewed, of_other_size}) {
    if (auto one = varied_spec(spec, spec, shape, vary)) varied.push_back(*std::move(one));
  }
  return varied;
}

std::vector<VariedSpec> confirming_specs(const AttentionSpec& spec, const ProblemShape& shape) {
  if (!is_described(spec)) return {};
  std::vector<VariedSpec> drawn;
  const auto add = [&](const AttentionSpec& of) {
    if (auto one = varied_spec(spec, of, shape, another)) drawn.push_back(*std::move(one));
  };
  add(spec);
  for (const VariedSpec& one : varied_specs(spec, shape)) add(one.spec);
  return drawn;
}

std::vector<std::string> described_samples(const AttentionSpec& spec) {
  std::vector<std::string> samples;
  for (std::size_t slot = 0; slot < spec.environment.tensors.size(); ++slot) {
    const Sample sample = sample_of(spec, slot);
    if (sample.kind == SampleKind::kUnsaid || sample.kind == SampleKind::kGiven) continue;
    samples.push_back(spec.environment.tensors[slot].name + "=" + to_string(sample));
  }
  return samples;
}

Status describe(std::span<const std::string> samples, AttentionSpec& spec) {
  const auto& declared = spec.environment.tensors;
  spec.samples.resize(declared.size());
  for (const std::string& one : samples) {
    const auto equals = std::min(one.find('='), one.size());
    const auto at = std::ranges::find(declared, one.substr(0, equals), &expr::TensorDecl::name);
    if (at == declared.end() || equals == one.size()) {
      return Error{.kind = ErrorKind::kBadInput,
                   .id = "sample-unknown",
                   .message = fmt::format("`{}` describes no tensor of `{}`", one, spec.name)};
    }
    ATT_TRY(spec.samples[static_cast<std::size_t>(at - declared.begin())],
            parse_sample(std::string_view(one).substr(equals + 1), *at));
  }
  return ok_status();
}

}  // namespace attune
