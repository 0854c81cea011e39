#include "generator/plan/sm90a_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "generator/plan/family.hpp"
#include "generator/plan/sm90a.hpp"

namespace attune::sm90a {
namespace {

constexpr int kMostGroups = 1 << 16;  // of heads that are dealt out together: more than there are

struct ScheduleName {
  Schedule schedule;
  std::string_view text;      // in a plan
  std::string_view constant;  // in the kernel
};
constexpr std::array<ScheduleName, 3> kSchedules = {{
    {Schedule::kSingle, "single", "single"},
    {Schedule::kPersistent, "persistent", "persistent"},
    {Schedule::kLongestFirst, "longest", "longest_first"},
}};

std::string heads_word(const Sm90aPlan& tile) {
  if (tile.heads == 1) return "";
  return tile.heads == tile.warpgroups ? " heads" : fmt::format(" heads{}", tile.heads);
}

std::string_view rows_word(const Sm90aPlan& tile) {
  constexpr std::string_view kWords[] = {"", " vrows", " rows"};
  return kWords[static_cast<std::size_t>(tile.copied_rows)];
}

}  // namespace

std::string_view schedule_constant(Schedule schedule) {
  return kSchedules[static_cast<std::size_t>(schedule)].constant;
}

std::vector<int> choices(const KernelPlan& plan) {
  const Sm90aPlan& t = tile_of(plan);
  // An order of items and its grouping of heads are one; where P goes follows from the tile.
  const int order = static_cast<int>(t.schedule) * kMostGroups + t.heads_per_group;
  const int copied_rows = static_cast<int>(t.copied_rows);
  const int heads_of_warpgroup = t.heads == 1 ? 0 : t.heads / t.warpgroups;
  return {t.warpgroups, t.tile_kv,    t.stages,    t.score_buffers, t.q_in_registers,
          t.cluster,    t.frozen_max, t.tma_store, t.ping_pong,     heads_of_warpgroup,
          copied_rows,  t.pieces,     order};
}

std::string tile_text(const KernelPlan& plan) {
  const Sm90aPlan& tile = tile_of(plan);
  return fmt::format(
      "w{} k{} s{} b{}{}{} c{} {} g{}{}{}{}{}{}{}", tile.warpgroups, tile.tile_kv, tile.stages,
      tile.score_buffers, tile.q_in_registers ? " qreg" : "", tile.p_in_shared ? " psmem" : "",
      tile.cluster, kSchedules[static_cast<std::size_t>(tile.schedule)].text, tile.heads_per_group,
      tile.frozen_max ? " frozen" : "", tile.tma_store ? " tma" : "", tile.ping_pong ? " pp" : "",
      heads_word(tile), rows_word(tile), tile.pieces > 1 ? fmt::format(" p{}", tile.pieces) : "");
}

Status parse_tile(std::span<const std::string_view> words, KernelPlan& plan) {
  Sm90aPlan tile;
  tile.q_in_registers = false;
  tile.frozen_max = false;
  tile.tma_store = false;
  int seen = 0;
  for (const std::string_view word : words) {
    const auto* schedule =
        std::ranges::find_if(kSchedules, [&](const ScheduleName& s) { return s.text == word; });
    if (schedule != kSchedules.end()) {
      tile.schedule = schedule->schedule;
      ++seen;
    } else if (word == "qreg") {
      tile.q_in_registers = true;
    } else if (word == "psmem") {
      tile.p_in_shared = true;
    } else if (word == "frozen") {
      tile.frozen_max = true;
    } else if (word == "tma") {
      tile.tma_store = true;
    } else if (word == "pp") {
      tile.ping_pong = true;
    } else if (word == "heads") {
      tile.heads = 0;  // as many as warpgroups
    } else if (parse_word(word, "heads", tile.heads)) {
      // Without the word there is one.
    } else if (word == "rows") {
      tile.copied_rows = CopiedRows::kAll;
    } else if (word == "vrows") {
      tile.copied_rows = CopiedRows::kValues;
    } else if (parse_word(word, "p", tile.pieces)) {
      // Without the word there is one.
    } else if (parse_word(word, "w", tile.warpgroups) || parse_word(word, "k", tile.tile_kv) ||
               parse_word(word, "s", tile.stages) || parse_word(word, "b", tile.score_buffers) ||
               parse_word(word, "c", tile.cluster) || parse_word(word, "g", tile.heads_per_group)) {
      ++seen;
    } else {
      return plan_text_error(fmt::format("`{}` is no word of an sm90a plan", word));
    }
  }
  if (seen != 7) {
    return plan_text_error("an sm90a plan needs w, k, s, b, c, a schedule and g once each");
  }
  if (tile.warpgroups < 1) return plan_text_error("an sm90a plan has warpgroups");
  if (tile.heads == 0) tile.heads = tile.warpgroups;
  plan.tile = tile;
  return ok_status();
}

std::string symbol_part(const KernelPlan& plan) {
  const Sm90aPlan& tile = tile_of(plan);
  return fmt::format("{}q{}k{}s{}{}", tile.heads > 1 ? fmt::format("h{}", tile.heads) : "",
                     item_queries(tile), tile.tile_kv, tile.stages,
                     tile.pieces > 1 ? fmt::format("p{}", tile.pieces) : "");
}

}  // namespace attune::sm90a
