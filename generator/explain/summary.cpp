#include "generator/explain/summary.hpp"

#include <fmt/format.h>

namespace attune {
namespace {

// One decimal; a share that is neither nothing nor all never reads as if it were.
std::string percent(double share) {
  if (share > 0 && share < 0.0005) return "<0.1 %";
  if (share < 1 && share > 0.9995) return ">99.9 %";
  return fmt::format("{:.1f} %", 100 * share);
}

}  // namespace

PictureSummary summarise(const MaskPicture& picture) {
  const auto all = static_cast<double>(picture.counts.all());
  const auto line = [&](expr::TileClass tile_class, const char* name, const char* meaning,
                        std::int64_t count) {
    return ClassLine{.tile_class = tile_class,
                     .name = name,
                     .meaning = meaning,
                     .count = fmt::format("{} {}", count, count == 1 ? "tile" : "tiles"),
                     .share = percent(static_cast<double>(count) / all)};
  };
  const TileCounts& counts = picture.counts;
  const char* about = picture.sampled ? "about " : "";
  return {
      .problem = fmt::format("q_len {}, kv_len {}, batch {}, head {}, tiles of {} x {}",
                             picture.shape.q_len, picture.shape.kv_len, picture.b, picture.h,
                             picture.tile_q, picture.tile_kv),
      .classes = {line(expr::TileClass::kFull, "full", "runs without mask code", counts.full),
                  line(expr::TileClass::kPartial, "partial", "evaluates the mask", counts.partial),
                  line(expr::TileClass::kSkip, "skip", "is never loaded", counts.skip)},
      .live = fmt::format("live: {}{} of the elements, {} of the tiles", about,
                          percent(picture.live_share),
                          percent(static_cast<double>(counts.partial + counts.full) / all)),
      .useful =
          fmt::format("{}{} of what is computed is live", about, percent(picture.useful_share())),
  };
}

}  // namespace attune
