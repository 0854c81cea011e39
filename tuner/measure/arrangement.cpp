#include "tuner/measure/arrangement.hpp"

#include <algorithm>
#include <cstddef>

namespace attune {
namespace {

// f(where a row begins on the host, and on the device).
template <typename F>
void for_each_row(const Arrangement& all, const F& f) {
  std::int64_t host = 0;
  for (std::int64_t b = 0; b < all.batch; ++b) {
    for (std::int64_t h = 0; h < all.heads; ++h) {
      for (std::int64_t i = 0; i < all.seq; ++i, host += all.dim) {
        f(static_cast<std::size_t>(host),
          static_cast<std::size_t>(b * all.strides.batch + h * all.strides.head +
                                   i * all.strides.seq));
      }
    }
  }
}

}  // namespace

std::vector<double> Arrangement::to_device(std::span<const double> host) const {
  std::vector<double> device(host.size());
  for_each_row(
      *this, [&](std::size_t from, std::size_t to) { std::copy_n(&host[from], dim, &device[to]); });
  return device;
}

std::vector<double> Arrangement::to_host(std::span<const double> device) const {
  std::vector<double> host(device.size());
  for_each_row(
      *this, [&](std::size_t to, std::size_t from) { std::copy_n(&device[from], dim, &host[to]); });
  return host;
}

}  // namespace attune
