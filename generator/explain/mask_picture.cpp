#include "generator/explain/mask_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "generator/expr/tensor_ranges.hpp"
#include "generator/spec/shape.hpp"

namespace attune {
namespace {

constexpr std::int64_t kMaxTiles = std::int64_t{1} << 20;
constexpr int kMaxTile = 1024;

Error bad_request(std::string message, std::string hint = {}) {
  return {.kind = ErrorKind::kBadInput,
          .id = "picture-request",
          .message = std::move(message),
          .hint = std::move(hint)};
}

Status check_tensors(const AttentionSpec& spec, const PictureRequest& request) {
  const auto& declared = spec.environment.tensors;
  if (request.tensors.size() != declared.size() ||
      request.scalars.size() != spec.environment.scalars.size()) {
    return bad_request("the picture needs a value for every scalar and tensor of the spec");
  }
  for (std::size_t slot = 0; slot < declared.size(); ++slot) {
    std::vector<std::int64_t> sizes;
    std::int64_t count = 1;
    for (const expr::DimSize& dim : declared[slot].dims) {
      sizes.push_back(dim_size(dim, request.shape));
      count *= sizes.back();
    }
    const expr::TensorValues& given = request.tensors[slot];
    if (given.sizes != sizes || static_cast<std::int64_t>(given.values.size()) != count) {
      return bad_request(
          fmt::format("tensor `{}` has not the size that the spec declares", declared[slot].name));
    }
  }
  return ok_status();
}

Status check_request(const AttentionSpec& spec, const PictureRequest& request) {
  const ProblemShape& shape = request.shape;
  if (shape.batch < 1 || shape.heads < 1 || shape.kv_heads < 1 ||
      shape.heads % shape.kv_heads != 0 || shape.q_len < 1 || shape.kv_len < 1 ||
      shape.q_len > expr::kMaxSequenceLength || shape.kv_len > expr::kMaxSequenceLength) {
    return bad_request(fmt::format("no problem has the shape {}", to_string(shape)));
  }
  if (request.tile_q < 1 || request.tile_kv < 1 || request.tile_q > kMaxTile ||
      request.tile_kv > kMaxTile) {
    return bad_request(fmt::format("tiles of {} x {} are not in 1 to {}", request.tile_q,
                                   request.tile_kv, kMaxTile));
  }
  if (request.b < 0 || request.b >= shape.batch || request.h < 0 || request.h >= shape.heads) {
    return bad_request(
        fmt::format("batch {} and head {} are not in {}", request.b, request.h, to_string(shape)));
  }
  const std::int64_t rows = (shape.q_len + request.tile_q - 1) / request.tile_q;
  const std::int64_t columns = (shape.kv_len + request.tile_kv - 1) / request.tile_kv;
  if (rows * columns > kMaxTiles) {
    return bad_request(
        fmt::format("{} x {} tiles are more than a picture has room for", rows, columns),
        "draw a shorter sequence");
  }
  return check_tensors(spec, request);
}

class Painter {
 public:
  Painter(const AttentionSpec& spec, const PictureRequest& request)
      : mask_(spec.mask),
        request_(request),
        ranges_(expr::ranges_of(mask_, spec.environment.tensors, request.tensors)) {
    point_.b = static_cast<std::int32_t>(request.b);
    point_.h = static_cast<std::int32_t>(request.h);
    point_.h_kv =
        static_cast<std::int32_t>(request.h / (request.shape.heads / request.shape.kv_heads));
    point_.q_len = static_cast<std::int32_t>(request.shape.q_len);
    point_.kv_len = static_cast<std::int32_t>(request.shape.kv_len);
    point_.scalars = request.scalars;
    point_.tensors = request.tensors;
  }

  MaskPicture paint() {
    picture_.shape = request_.shape;
    picture_.tile_q = request_.tile_q;
    picture_.tile_kv = request_.tile_kv;
    picture_.b = request_.b;
    picture_.h = request_.h;
    picture_.rows = (point_.q_len + request_.tile_q - 1) / request_.tile_q;
    picture_.columns = (point_.kv_len + request_.tile_kv - 1) / request_.tile_kv;
    classify_tiles();
    count_live();
    return std::move(picture_);
  }

 private:
  expr::TileBox box(int row, int column) const {
    expr::TileBox box{.q0 = row * request_.tile_q,
                      .q1 = std::min((row + 1) * request_.tile_q, point_.q_len),
                      .k0 = column * request_.tile_kv,
                      .k1 = std::min((column + 1) * request_.tile_kv, point_.kv_len),
                      .b = point_.b,
                      .h = point_.h,
                      .h_kv = point_.h_kv,
                      .q_len = point_.q_len,
                      .kv_len = point_.kv_len,
                      .scalars = request_.scalars,
                      .tensor_range = {}};
    box.tensor_range = [this](int slot, std::span<const expr::IntInterval> indices) {
      return ranges_[static_cast<std::size_t>(slot)].range(indices);
    };
    return box;
  }

  void classify_tiles() {
    if (mask_) {
      const expr::TileClassifier classify(mask_);
      const expr::KvBoundsSolver solve(mask_);
      for (int row = 0; row < picture_.rows; ++row) {
        picture_.kv_bounds.push_back(solve(box(row, 0)));
        for (int column = 0; column < picture_.columns; ++column)
          add_tile(classify(box(row, column)), column);
      }
      return;
    }
    picture_.kv_bounds.assign(static_cast<std::size_t>(picture_.rows), {0, point_.kv_len});
    for (int row = 0; row < picture_.rows; ++row) {
      for (int column = 0; column < picture_.columns; ++column)
        add_tile(expr::TileClass::kFull, column);
    }
  }

  void add_tile(expr::TileClass tile, int column) {
    const bool ragged = (column + 1) * std::int64_t{request_.tile_kv} > point_.kv_len;
    if (ragged && tile == expr::TileClass::kFull) tile = expr::TileClass::kPartial;
    picture_.classes.push_back(tile);
    TileCounts& counts = picture_.counts;
    (tile == expr::TileClass::kSkip   ? counts.skip
     : tile == expr::TileClass::kFull ? counts.full
                                      : counts.partial) += 1;
  }

  // Live share of the box on a grid of every `stride`-th query and key.
  float live_share(const expr::TileBox& box, int stride) {
    if (!mask_) return 1;
    std::int64_t live = 0, all = 0;
    // Keys are shifted from query to query, so that no period of the mask hides from the grid.
    int shift = 0;
    for (point_.q_idx = box.q0; point_.q_idx < box.q1; point_.q_idx += stride) {
      for (point_.kv_idx = box.k0 + shift; point_.kv_idx < box.k1; point_.kv_idx += stride) {
        live += expr::evaluate(mask_, point_) != 0;
        ++all;
      }
      shift = (shift + 1) % stride;
    }
    return all == 0 ? 0 : static_cast<float>(static_cast<double>(live) / static_cast<double>(all));
  }

  void count_live() {
    const double elements =
        static_cast<double>(picture_.counts.partial) * request_.tile_q * request_.tile_kv;
    const double excess =
        elements / static_cast<double>(std::max<std::int64_t>(request_.max_elements, 1));
    const int stride = std::clamp(static_cast<int>(std::ceil(std::sqrt(excess))), 1,
                                  std::min(request_.tile_q, request_.tile_kv));
    picture_.sampled = stride > 1 && mask_ != nullptr;
    double live = 0;
    for (int row = 0; row < picture_.rows; ++row) {
      for (int column = 0; column < picture_.columns; ++column) {
        const expr::TileBox tile = box(row, column);
        float share = 0;
        if (picture_.tile_class(row, column) == expr::TileClass::kFull) share = 1;
        if (picture_.tile_class(row, column) == expr::TileClass::kPartial)
          share = live_share(tile, stride);
        picture_.live.push_back(share);
        live += static_cast<double>(share) * (tile.q1 - tile.q0) * (tile.k1 - tile.k0);
      }
    }
    picture_.live_share = live / (static_cast<double>(point_.q_len) * point_.kv_len);
  }

  const expr::Expr& mask_;
  const PictureRequest& request_;
  const std::vector<expr::TensorRanges> ranges_;
  expr::Point point_;
  MaskPicture picture_;
};

}  // namespace

double MaskPicture::useful_share() const {
  const auto computed = static_cast<double>(counts.partial + counts.full) * tile_q * tile_kv;
  const double live_elements =
      live_share * static_cast<double>(shape.q_len) * static_cast<double>(shape.kv_len);
  return computed > 0 ? live_elements / computed : 1;
}

Result<MaskPicture> picture_mask(const AttentionSpec& spec, const PictureRequest& request) {
  ATT_CHECK(check_request(spec, request));
  return Painter(spec, request).paint();
}

}  // namespace attune
