#include "tests/verification/random_specs.hpp"

#include <fmt/format.h>

#include <initializer_list>

namespace attune::random_specs {
namespace {

class Writer {
 public:
  Writer(std::mt19937_64& random, Wanted wanted)
      : random_(random), trains_(wanted == Wanted::kBothPasses) {}

  std::string write() {
    const std::string dtype = pick({"bf16", "bf16", "fp16", "fp32"});
    const bool is_fp32 = dtype == "fp32";
    const std::string layout =
        trains_ ? pick({"bshd", "bhsd", "thd"}) : pick({"bshd", "bhsd", "thd", "paged", "paged"});
    is_packed_ = layout == "thd" || layout == "paged";
    is_paged_ = layout == "paged";
    std::string text = fmt::format("name: t\ndtype: {}\nlayout: {}\n", dtype, layout);
    const bool is_latent = !trains_ && !is_fp32 && one_in(9);
    const bool is_fp8 = !trains_ && !is_fp32 && !is_latent && one_in(6);
    if (is_fp32 && one_in(3)) text += "precision: tf32\n";
    text += fmt::format("head_dim: {}\n", is_latent ? latent_dims() : dims(is_fp8));
    if (is_latent) text += "v_in_k: true\n";
    if (is_fp8) text += "kv_dtype: fp8_e4m3\n";
    if (!is_fp32 && !is_latent && !is_fp8) text += accuracy();
    if (one_in(4)) text += "deterministic: true\n";
    if (!trains_ && !is_fp8 && one_in(8)) text += "batch_invariant: true\n";
    if (is_paged_ && !is_fp8 && one_in(4)) text += "shared_prefixes: true\n";
    if (one_in(4))
      text += fmt::format("softmax_scale: {}\n", pick({"float", "0.5", "0.03", "4.0", "0.000001"}));
    if (one_in(5) && !is_fp8)
      text += fmt::format("dropout: {}\n",
                          pick({"0.1", "0.25", "0.5", "float", "{p: 0.3, seed: device}"}));
    if (const std::string live = mask(); !live.empty()) text += "mask: " + live + "\n";
    if (const std::string bent = score(); !bent.empty()) text += "score: " + bent + "\n";
    if (one_in(5)) text += "sink: " + sink() + "\n";
    if (trains_) text += "passes: [forward, backward]\n";
    if (!scalars_.empty()) text += "scalars:\n";
    for (const std::string& scalar : scalars_) text += "  " + scalar + "\n";
    if (tensors_.empty()) return text;
    text += "tensors:\n";
    for (const std::string& tensor : tensors_) text += "  " + tensor + "\n";
    return text;
  }

 private:
  std::int64_t below(std::int64_t bound) {
    return std::uniform_int_distribution<std::int64_t>(0, bound - 1)(random_);
  }
  bool one_in(std::int64_t count) { return below(count) == 0; }
  std::int64_t number(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  std::string pick(std::initializer_list<const char*> of) {
    return of.begin()[below(static_cast<std::int64_t>(of.size()))];
  }

  // `relaxed` is of gradients.
  std::string accuracy() {
    if (trains_ && one_in(3)) return "accuracy: relaxed\n";
    return one_in(5) ? "accuracy: strict\n" : "";
  }
  std::string dims(bool is_fp8) {
    if (is_fp8) return pick({"64", "128", "128", "96", "256", "80"});
    if (one_in(5))
      return one_in(2) ? fmt::format("{}", 8 * number(2, 32))
                       : fmt::format("{{qk: {}, v: {}}}", 8 * number(2, 32), 8 * number(2, 32));
    return pick({"64",
                 "64",
                 "128",
                 "128",
                 "256",
                 "96",
                 "80",
                 "32",
                 "16",
                 "192",
                 "72",
                 "40",
                 "160",
                 "{qk: 192, v: 128}",
                 "{qk: 64, v: 128}",
                 "{qk: 40, v: 56}",
                 "{qk: 24, v: 136}",
                 "{qk: 128, v: 64}",
                 "{qk: 256, v: 96}",
                 "112",
                 "224"});
  }
  std::string latent_dims() {
    return pick({"{qk: 576, v: 512}", "{qk: 576, v: 512}", "{qk: 320, v: 256}", "128",
                 "{qk: 192, v: 128}", "{qk: 96, v: 64}"});
  }

  // A new tensor; its name.
  std::string tensor(const char* dtype, const char* dims, const char* more = "") {
    const std::string name = fmt::format("t{}", tensors_.size());
    const bool learns =
        trains_ && std::string_view(dtype) == "float32" && std::string_view(more).empty();
    tensors_.push_back(fmt::format("{}: {{dtype: {}, dims: {}{}{}}}", name, dtype, dims, more,
                                   learns && one_in(2) ? ", grad: true" : ""));
    return name;
  }

  // A new scalar that launches bring; its name.
  std::string scalar(const char* type) {
    const std::string name = fmt::format("x{}", scalars_.size());
    scalars_.push_back(fmt::format("{}: {}", name, type));
    return name;
  }

  std::string mask() {
    std::string first = term();
    if (first.empty() || !one_in(4)) return first;
    const std::string second = term();
    if (second.empty()) return first;
    return fmt::format("({}) {} ({})", first, pick({"and", "or", "and not"}), second);
  }
  // Where int32 wraps, divisors are 0, shifts go too far, and hardly a key lives or none.
  std::string odd_term() {
    switch (below(12)) {
      case 0:
        return fmt::format("sliding_window({})", scalar("int"));
      case 1:
        return fmt::format("causal and kv_idx >= {}", scalar("int"));
      case 2:
        return fmt::format("q_pos + {} > kv_idx", scalar("int"));
      case 3: {
        const std::string n = scalar("int");
        return fmt::format("q_pos // {} == kv_idx // {}", n, n);
      }
      case 4:
        return "q_idx * 16777259 - kv_idx * 9999991 > 0";
      case 5:
        return "q_idx * 1000003 % 7 < kv_idx * 1000000 // 1000000";
      case 6:
        return "kv_idx // (q_idx - 5) >= 0 and kv_idx % (q_idx % 3) < 2";
      case 7:
        return "kv_idx << q_idx % 40 - 4 > 64 or kv_idx >> q_idx % 37 - 2 == 0";
      case 8:
        return "(kv_idx ^ q_idx) & 5 != 1 and (kv_idx | 9) > (q_idx & 77)";
      case 9:
        return pick({"kv_idx < 0", "kv_idx == kv_len - 1", "kv_idx == 3 * q_idx", "kv_idx == 17",
                     "q_idx == 3", "kv_len < 100"});
      case 10:
        return "abs(-2147483647 - 1 - kv_idx % 2) > q_idx or kv_idx < 9";
      default:
        return fmt::format("kv_idx < {}[b] - 1000000000 * (q_idx % 5)", tensor("int32", "[batch]"));
    }
  }
  // Named masks, definitions, reductions, look-ups of look-ups, dims that are computed.
  std::string rarer_term() {
    const std::int64_t n = number(2, 90);
    switch (below(20)) {
      case 0:
        return fmt::format("local({}, {})", number(0, 90), number(0, 60));
      case 1:
        return fmt::format("chunked({})", n);
      case 2:
        return fmt::format("global_window({}, {})", n, number(0, 20));
      case 3:
        return fmt::format("window_2d({}, {})", number(8, 40), 2 * number(1, 6) + 1);
      case 4: {
        const std::int64_t k = 2 * number(1, 3) + 1;
        return fmt::format("natten_2d({}, {})", number(k, 20), k);
      }
      case 5:
        return fmt::format("padding({})",
                           tensor("int32", "[batch]", ", sample: \"lengths(0, 1)\""));
      case 6: {
        const std::string dims =
            fmt::format("[(q_len + {}) // {}, (kv_len + {}) // {}]", n - 1, n, n - 1, n);
        const std::string table = tensor("bool", dims.c_str(), ", sample: chance(0.4)");
        return one_in(2) ? fmt::format("block_sparse({}, {})", table, n)
                         : fmt::format("big_bird(20, 3, {}, {})", table, n);
      }
      case 7:
        if (is_packed_) {
          return fmt::format("kv_idx < kv_len - q_len or {}[q_idx, kv_idx - (kv_len - q_len)]",
                             tensor("bool", "[q_len, 64]", ", sample: chance(0.5)"));
        }
        return fmt::format("tree({})", tensor("bool", "[q_len, q_len]", ", sample: ancestors(2)"));
      case 8:
        return fmt::format("let d = q_pos - kv_idx in d >= 0 and (d < {} or d % 7 == 0)", n);
      case 9:
        return fmt::format("any(i, 4, {}[h, i] == kv_idx // 32)",
                           tensor("int32", "[heads, 4]", ", sample: \"uniform(0, 9)\""));
      case 10:
        return fmt::format("all(i, 3, {}[kv_idx, i] != (q_idx + i) % 5)",
                           tensor("int32", "[kv_len, 3]", ", sample: \"uniform(0, 9)\""));
      case 11:
        return fmt::format("kv_idx % 7 < {}[{}[kv_idx], q_idx % 3]",
                           tensor("int32", "[32, 3]", ", sample: \"uniform(0, 7)\""),
                           tensor("int32", "[kv_len]", ", sample: \"uniform(-2, 40)\""));
      case 12:
        return fmt::format("{}[q_idx, kv_idx // 32] >> kv_idx % 32 & 1 == 1",
                           tensor("int32", "[q_len, (kv_len + 31) // 32]",
                                  ", sample: \"uniform(-2000000000, 2000000000)\""));
      case 13:
        return fmt::format("kv_idx < {}[b + 1]",
                           tensor("int32", "[batch + 1]", ", sample: \"uniform(0, 600)\""));
      case 14:
        return fmt::format("kv_idx >= {}", tensor("int32", "[]", ", sample: \"uniform(0, 40)\""));
      case 15:
        return fmt::format("{}[h_kv, kv_idx // {}]",
                           tensor("bool", fmt::format("[kv_heads, kv_len // {}]", n).c_str(),
                                  ", sample: chance(0.7)"),
                           n);
      case 16:
        return fmt::format("{}[kv_idx] {} {}[q_idx]", tensor("bf16", "[kv_len]"), pick({"<", ">="}),
                           tensor("fp16", "[q_len]"));
      case 17:
        if (is_packed_) return fmt::format("{}[b, h]", tensor("bool", "[batch, heads]"));
        return fmt::format("{}[b, h, q_idx, kv_idx]",
                           tensor("bool", "[batch, heads, q_len, kv_len]"));
      case 18:
        return fmt::format("sliding_window({}) if h % 2 == 0 else sink_window({}, {})", n,
                           number(1, 200), number(0, 9));
      default:
        return fmt::format("{0}[q_idx] <= kv_idx and kv_idx < {0}[q_idx] + {1}",
                           tensor("int32", "[q_len]", ", sample: \"sorted(0, 300)\""), n);
    }
  }
  // A query sees keys of its own number in a tensor: launches work out runs of equal ones.
  std::string equal_numbers() {
    struct Rows {
      const char *dims, *indices;
    };
    constexpr Rows kRows[] = {{"", ""},
                              {"heads, ", "h, "},
                              {"kv_heads, ", "h_kv, "},
                              {"2, ", "h % 2, "},
                              {"3, 2, ", "1, h_kv, "},
                              {"batch, ", "b, "},
                              {"batch, ", "h - 1, "},
                              {"batch, heads, ", "b, h, "}};
    const Rows& rows = kRows[below(is_packed_ && !is_paged_ ? 5 : 8)];
    const std::string dims =
        fmt::format("[{}{}]", rows.dims,
                    is_packed_ ? "kv_len" : pick({"kv_len", "kv_len", "kv_len", "q_len", "37"}));
    const std::string of_query =
        pick({"q_pos", "q_pos", "q_idx", "min(q_pos, kv_len - 1)", "q_pos // 2", "2 * q_idx + 1",
              "kv_len - 1 - q_idx", "q_pos - 5", "q_idx + 3", "q_idx * 4000037"});
    const std::string sample = pick({"segments(40)", "segments(300)", "\"sorted(0, 9)\"",
                                     "\"uniform(0, 3)\"", "permutation", "skewed segments(60)"});
    const std::string name = tensor("int32", dims.c_str(), (", sample: " + sample).c_str());
    const std::string of_key = fmt::format("{}[{}kv_idx]", name, rows.indices);
    const std::string equal =
        one_in(3) ? fmt::format("{} == {}[{}{}]", of_key, name, rows.indices, of_query)
                  : fmt::format("{}[{}{}] == {}", name, rows.indices, of_query, of_key);
    switch (below(8)) {
      case 0:
      case 1:
        return equal;
      case 2:
      case 3:
        return fmt::format("kv_idx <= {} and {}", of_query, equal);
      case 4:
        return fmt::format("{} and {} > kv_idx", equal, of_query);
      case 5:
        return fmt::format("sliding_window({}) and {}", number(1, 300), equal);
      case 6:
        return fmt::format("causal and not ({})", equal);
      default:
        return fmt::format("causal and ({} or kv_idx < {})", equal, number(1, 9));
    }
  }
  std::string term() {
    if (one_in(8)) return odd_term();
    if (one_in(8)) return equal_numbers();
    if (one_in(4)) return rarer_term();
    switch (below(24)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return "";
      case 4:
      case 5:
      case 6:
        return "causal";
      case 7:
        return "causal_top_left";
      case 8:
        return fmt::format("sliding_window({})", number(1, 300));
      case 9:
        return fmt::format("causal and (q_pos - kv_idx < {} or kv_idx < {})", number(1, 300),
                           number(1, 40));
      case 10:
        return fmt::format("abs(q_pos - kv_idx) < {}", number(1, 200));
      case 11:
        return fmt::format("prefix_lm({})", number(1, 300));
      case 12: {
        const std::int64_t n = number(2, 8);
        return fmt::format("(q_pos - kv_idx) % {} == {}", n, one_in(2) ? 0 : below(n));
      }
      case 13:
        return "kv_idx <= q_pos and q_idx % 7 != 3";
      case 14: {
        const std::int64_t n = number(3, 70);
        return fmt::format("q_pos // {} == kv_idx // {}", n, n);
      }
      case 15: {
        const std::int64_t n = number(8, 40), r = number(1, 6);
        return fmt::format(
            "abs(q_idx % {} - kv_idx % {}) <= {} and abs(q_idx // {} - kv_idx // {}) <= {}", n, n,
            r, n, n, r);
      }
      case 16:
        return fmt::format("causal and q_pos - kv_idx < {} * (h + 1)", number(5, 90));
      case 17:
        return fmt::format("kv_idx >= {}[b]", tensor("int32", "[batch]"));
      case 18: {
        const std::string doc =
            tensor("int32", is_packed_ && !is_paged_ ? "[kv_len]" : "[batch, kv_len]",
                   ", sample: segments(90)");
        const char* const b = is_packed_ && !is_paged_ ? "" : "b, ";
        return fmt::format("{0}[{1}min(q_pos, kv_len - 1)] == {0}[{1}kv_idx]", doc, b);
      }
      case 19:
        if (is_packed_) return fmt::format("kv_idx > {}", number(0, 300));
        return fmt::format("{}[q_idx, kv_idx]",
                           tensor("bool", "[q_len, kv_len]",
                                  one_in(2) ? ", sample: chance(0.9)" : ", sample: chance(0.05)"));
      case 20:
        if (is_packed_) return "h % 2 == 0 or kv_idx <= q_pos";
        return fmt::format("{}[q_idx // 64, kv_idx // 64]",
                           tensor("bool", "[(q_len + 63) // 64, (kv_len + 63) // 64]"));
      case 21:
        return fmt::format("kv_idx < {}[q_idx]",
                           tensor("int32", "[q_len]", ", sample: \"uniform(0, 500)\""));
      case 22:
        return pick({"not causal", "kv_idx == q_pos", "kv_idx > 3 and kv_idx < kv_len - 5",
                     "q_idx % 50 >= 17", "(kv_idx + q_idx) % 3 != 0",
                     "kv_idx % 64 != 0 and kv_idx % 64 != 63", "kv_idx // 130 % 2 == 1"});
      default:
        return "h % 3 != 1 and causal";
    }
  }

  std::string score() {
    if (one_in(3)) return "";
    std::string text = bend("score");
    return one_in(4) ? bend("(" + text + ")") : text;
  }
  std::string rarer_bend(const std::string& s) {
    const char* const half = one_in(2) ? "bf16" : "fp16";
    switch (below(20)) {
      case 0:
        if (is_packed_) return fmt::format("{} + {}[q_idx]", s, tensor(half, "[q_len]"));
        return fmt::format("{} + {}[q_idx, kv_idx]", s, tensor(half, "[q_len, kv_len]"));
      case 1:
        return fmt::format("{} + {}[h, kv_idx]", s, tensor(half, "[heads, kv_len]"));
      case 2:
        return fmt::format("{} * {}[h_kv]", s, tensor(half, "[kv_heads]"));
      case 3:
        return fmt::format("{} * pow(0.9, 0.1 * abs(q_pos - kv_idx))", s);
      case 4:
        return fmt::format("{} + log(1.0 + abs({}))", s, s);
      case 5:
        return fmt::format("sqrt(abs({}) + 1.0)", s);
      case 6:
        return fmt::format("exp(min({}, 3.0))", s);
      case 7:
        return fmt::format("{}({})", pick({"erf", "silu", "gelu", "cos", "tanh"}), s);
      case 8:
        return fmt::format("{} - log2(1.0 + abs(q_pos - kv_idx))", s);
      case 9:
        return fmt::format("{} + dot(i, 3, {}[b, h, i], {}[q_idx, kv_idx % 4, i])", s,
                           tensor("float32", "[batch, heads, 3]"),
                           tensor("float32", "[q_len, 4, 3]"));
      case 10:
        return fmt::format("{} + {}[h, {}[kv_idx]]", s, tensor("float32", "[heads, 32]"),
                           tensor("int32", "[kv_len]", ", sample: \"uniform(-3, 40)\""));
      case 11:
        return fmt::format("{} + ({}[kv_idx] if kv_idx % 3 == 0 else {}[q_idx])", s,
                           tensor("float32", "[kv_len]"), tensor("float32", "[q_len]"));
      case 12:
        return fmt::format("{} if q_pos >= kv_idx else {} * {}[h]", s, s,
                           tensor("float32", "[heads]"));
      case 13:
        return fmt::format("{} + {}[h, q_idx - kv_idx + kv_len - 1]", s,
                           tensor("float32", "[heads, 2 * kv_len - 1]"));
      case 14:
        if (is_packed_) return fmt::format("{} + {}[b, h]", s, tensor("float32", "[batch, heads]"));
        return fmt::format("{} + {}[b, h, q_idx, kv_idx]", s,
                           tensor("float32", "[batch, heads, q_len, kv_len]"));
      case 15:
        return fmt::format("{} + {}", s, tensor("float32", "[]"));
      case 16:
        return fmt::format("{} + {}[q_idx // 64, kv_idx // 64]", s,
                           tensor("float32", "[q_len // 64, kv_len // 64]"));
      case 17:
        return fmt::format("let x = {} in (x * x if x > 0.0 else 0.1 * x)", s);
      case 18:
        return fmt::format("{} + {}[h, kv_idx // 16, 0] * {}[q_idx]", s,
                           tensor("float32", "[heads, (kv_len + 15) // 16, 1]"),
                           tensor(half, "[q_len]"));
      default:
        return fmt::format("-{} if q_idx % 2 == 1 else max({}, -{})", s, s, pick({"2.0", "0.1"}));
    }
  }
  std::string bend(const std::string& s) {
    if (one_in(3)) return rarer_bend(s);
    switch (below(25)) {
      case 22:
        return fmt::format("{} * {}", s, scalar("float"));
      case 23:
        return fmt::format("{} + {} * (kv_idx - q_pos)", s, scalar("float"));
      case 24:
        return fmt::format("{} + 0.125 * (kv_idx // (q_idx % 3) - (q_idx << kv_idx % 35 & 7))", s);
      case 0:
      case 1: {
        const std::string c = pick({"0.5", "5", "20.0", "50", "30"});
        return fmt::format("{} * tanh({} / {})", c, s, c);
      }
      case 2:
        return fmt::format("{} - {} * abs(q_pos - kv_idx)", s, pick({"0.01", "0.5", "3.0"}));
      case 3:
        return fmt::format("{} + {}[h] * (kv_idx - q_pos)", s,
                           tensor("float32", "[heads]", one_in(2) ? ", sample: slopes" : ""));
      case 4:
      case 5:
        if (is_packed_) return fmt::format("{} + {}[kv_idx]", s, tensor("float32", "[kv_len]"));
        return fmt::format("{} + {}[q_idx, kv_idx]", s, tensor("float32", "[q_len, kv_len]"));
      case 6:
        return fmt::format("{} + {}[kv_idx]", s, tensor("float32", "[kv_len]"));
      case 7:
        return fmt::format("{} + {}[q_idx]", s, tensor("float32", "[q_len]"));
      case 8:
        return fmt::format("{} * {}[h]", s, tensor("float32", "[heads]"));
      case 9:
        return fmt::format("2.5 * {} + 1", s);
      case 10:
        return fmt::format("{} if kv_idx % 2 == 0 else -{}", s, s);
      case 11:
        return fmt::format("min({}, 1.0)", s);
      case 12:
        return fmt::format("{} + {}[h, max(0, min(63, q_pos - kv_idx))]", s,
                           tensor("float32", "[heads, 64]"));
      case 13:
        return fmt::format("{} {} 0.02 * kv_idx", s, pick({"+", "-"}));
      case 14:
        return fmt::format("12 * {} + 0.02 * kv_idx", s);
      case 15:
        return fmt::format("{} * {} / 8", s, s);
      case 16:
        return fmt::format("sin({})", s);
      case 17:
        return fmt::format("softplus({})", s);
      case 18:
        return fmt::format("-1e9 if (q_idx + kv_idx) % 5 == 0 else {}", s);
      case 19:
        return fmt::format("{} + 1e3 * (kv_idx // 90 - q_idx % 3)", s);
      case 20:
        return fmt::format("{} + 4.0 * (q_pos - kv_idx)", s);
      default:
        return fmt::format("300 * sigmoid({} / 80) - 140", s);
    }
  }

  std::string sink() {
    if (one_in(2)) return pick({"1.5", "-20.0 * h", "60.0", "0.25 * h + b"});
    if (one_in(4)) return tensor("float32", "[batch, heads]") + "[b, h]";
    if (one_in(4)) return "2.0 * " + tensor(one_in(2) ? "bf16" : "fp16", "[kv_heads]") + "[h_kv]";
    return tensor("float32", "[heads]") + "[h]";
  }

  std::mt19937_64& random_;
  const bool trains_;
  bool is_packed_ = false, is_paged_ = false;
  std::vector<std::string> scalars_, tensors_;
};

}  // namespace

std::string draw(std::mt19937_64& random, Wanted wanted) { return Writer(random, wanted).write(); }

}  // namespace attune::random_specs
