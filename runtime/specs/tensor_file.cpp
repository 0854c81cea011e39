#include "runtime/specs/tensor_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>

#include "generator/spec/shape.hpp"
#include "generator/support/suggest.hpp"

namespace attune {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read as they lie");

constexpr std::int64_t kMostElements = std::int64_t{1} << 28;
constexpr std::size_t kMostHeader = std::size_t{1} << 16;

Error bad_tensor_file(const std::string& path, std::string_view what, std::string hint = {}) {
  return {.kind = ErrorKind::kBadInput,
          .id = "tensor-file",
          .message = fmt::format("`{}` {}", path, what),
          .hint = std::move(hint)};
}

Error wrong_size(std::string message) {
  return {.kind = ErrorKind::kBadInput, .id = "tensor-size", .message = std::move(message)};
}

// What a file says of its array; the format is NumPy's, numpy/lib/format.py.
struct Header {
  std::string descr;  // "<i4"
  bool fortran_order = false;
  std::vector<std::int64_t> sizes;
};

// What stands behind `'key':` up to the next comma outside parentheses.
std::optional<std::string_view> value_of(std::string_view dict, std::string_view key) {
  const std::string quoted_key = fmt::format("'{}':", key);
  const auto at = dict.find(quoted_key);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = dict.substr(at + quoted_key.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  const auto end = rest.starts_with('(') ? rest.find(')') : rest.find_first_of(",}");
  if (end == std::string_view::npos) return std::nullopt;
  return rest.substr(rest.starts_with('(') ? 1 : 0, rest.starts_with('(') ? end - 1 : end);
}

std::optional<Header> parse_header(std::string_view dict) {
  const auto descr = value_of(dict, "descr");
  const auto order = value_of(dict, "fortran_order");
  const auto shape = value_of(dict, "shape");
  if (!descr || !order || !shape || descr->size() < 4) return std::nullopt;
  Header header{.descr = std::string(descr->substr(1, descr->size() - 2)),
                .fortran_order = *order != "False"};
  std::int64_t elements = 1;
  std::string_view rest = *shape;
  while (true) {
    rest.remove_prefix(std::min(rest.find_first_not_of(" ,"), rest.size()));
    if (rest.empty()) return header;
    std::int64_t size = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), size);
    if (error != std::errc() || size < 1 || size > kMostElements / elements) return std::nullopt;
    elements *= size;
    header.sizes.push_back(size);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  }
}

template <typename Element>
double widened(const char* bytes) {
  Element element;
  std::memcpy(&element, bytes, sizeof element);
  return static_cast<double>(element);
}

struct Format {
  std::string_view descr;
  char kind;  // 'i', 'f' or 'b'
  std::size_t width;
  double (*value)(const char* bytes);
};
constexpr Format kFormats[] = {
    {"<i4", 'i', 4, widened<std::int32_t>},  {"<i8", 'i', 8, widened<std::int64_t>},
    {"<i2", 'i', 2, widened<std::int16_t>},  {"|i1", 'i', 1, widened<std::int8_t>},
    {"<u4", 'i', 4, widened<std::uint32_t>}, {"<u2", 'i', 2, widened<std::uint16_t>},
    {"|u1", 'i', 1, widened<std::uint8_t>},  {"<f4", 'f', 4, widened<float>},
    {"<f8", 'f', 8, widened<double>},        {"<f2", 'f', 2, widened<_Float16>},
    {"|b1", 'b', 1, widened<std::uint8_t>},
};

char kind_of(expr::TensorType type) {
  return type == expr::TensorType::kInt32 ? 'i' : type == expr::TensorType::kBool ? 'b' : 'f';
}

// The array's header; `file` stands at its first element afterwards.
Result<Header> read_header(const std::string& path, std::ifstream& file) {
  char start[8] = {};
  file.read(start, sizeof start);
  if (!file || std::memcmp(start, "\x93NUMPY", 6) != 0)
    return bad_tensor_file(path, "is no .npy file", "numpy.save() writes one");
  std::uint32_t length = 0;
  file.read(reinterpret_cast<char*>(&length), start[6] == 1 ? 2 : 4);
  if (!file || length > kMostHeader) return bad_tensor_file(path, "has a damaged header");
  std::string dict(length, '\0');
  file.read(dict.data(), static_cast<std::streamsize>(length));
  const auto header = file ? parse_header(dict) : std::nullopt;
  if (!header) {
    return bad_tensor_file(
        path, fmt::format("has a header that is damaged, or more than {} elements", kMostElements));
  }
  if (header->fortran_order)
    return bad_tensor_file(path, "is in Fortran's order", "save numpy.ascontiguousarray() of it");
  return *header;
}

}  // namespace

Result<expr::TensorValues> read_npy(const std::string& path, expr::TensorType type) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return bad_tensor_file(path, "cannot be opened");
  ATT_TRY(const Header header, read_header(path, file));
  const char wanted = kind_of(type);
  const auto* const format = std::ranges::find(kFormats, header.descr, &Format::descr);
  const bool bool_as_bytes = wanted == 'b' && header.descr == "|u1";
  if (format == std::end(kFormats) || (format->kind != wanted && !bool_as_bytes)) {
    return bad_tensor_file(path, fmt::format("holds `{}`, and the tensor is of {}", header.descr,
                                             wanted == 'i'   ? "integers"
                                             : wanted == 'b' ? "bools"
                                                             : "floats"));
  }
  expr::TensorValues tensor{.sizes = header.sizes, .values = {}};
  std::size_t count = 1;
  for (const std::int64_t size : header.sizes) count *= static_cast<std::size_t>(size);
  tensor.values.reserve(count);
  std::vector<char> bytes(std::min<std::size_t>(count, 1 << 16) * format->width);
  while (tensor.values.size() < count) {
    const std::size_t here = std::min(bytes.size() / format->width, count - tensor.values.size());
    if (!file.read(bytes.data(), static_cast<std::streamsize>(here * format->width)))
      return bad_tensor_file(path, "ends before its last element");
    for (std::size_t i = 0; i < here; ++i) {
      const double value = format->value(&bytes[i * format->width]);
      const bool fits = wanted != 'i' || (value >= std::numeric_limits<std::int32_t>::min() &&
                                          value <= std::numeric_limits<std::int32_t>::max());
      if (!fits) return bad_tensor_file(path, fmt::format("holds {}, which int32 cannot", value));
      tensor.values.push_back(wanted == 'b' ? (value != 0 ? 1 : 0) : value);
    }
  }
  if (file.peek() != std::ifstream::traits_type::eof())
    return bad_tensor_file(path, "goes on behind its last element");
  return tensor;
}

Status give_tensors(std::span<const std::string> files, AttentionSpec& spec) {
  const auto& declared = spec.environment.tensors;
  spec.samples.resize(declared.size());
  for (const std::string& file : files) {
    const auto equals = file.find('=');
    const std::string name = file.substr(0, equals);
    if (equals == std::string::npos || equals + 1 == file.size()) {
      return Error{.kind = ErrorKind::kBadInput,
                   .id = "tensor-file",
                   .message = fmt::format("`{}` is not NAME=FILE", file),
                   .hint = "as in doc=documents.npy"};
    }
    const auto at = std::ranges::find(declared, name, &expr::TensorDecl::name);
    if (at == declared.end()) {
      std::vector<std::string_view> names;
      for (const expr::TensorDecl& tensor : declared) names.push_back(tensor.name);
      std::string hint = did_you_mean(name, names);
      if (hint.empty())
        hint = names.empty() ? "the spec has no tensors" : "its tensors are " + join_names(names);
      return Error{.kind = ErrorKind::kBadInput,
                   .id = "tensor-unknown",
                   .message = fmt::format("`{}` has no tensor `{}`", spec.name, name),
                   .hint = std::move(hint)};
    }
    ATT_TRY(expr::TensorValues values, read_npy(file.substr(equals + 1), at->type));
    if (values.sizes.size() != at->dims.size()) {
      return wrong_size(fmt::format("`{}` has {} dims, and `{}` has {}", file.substr(equals + 1),
                                    values.sizes.size(), name, at->dims.size()));
    }
    spec.samples[static_cast<std::size_t>(at - declared.begin())] = {
        .kind = SampleKind::kGiven,
        .given = std::make_shared<const expr::TensorValues>(std::move(values))};
  }
  return ok_status();
}

Status check_given(const AttentionSpec& spec, const ProblemShape& shape) {
  for (std::size_t slot = 0; slot < spec.samples.size(); ++slot) {
    if (spec.samples[slot].kind != SampleKind::kGiven) continue;
    const expr::TensorDecl& tensor = spec.environment.tensors[slot];
    std::vector<std::int64_t> sizes;
    for (const expr::DimSize& dim : tensor.dims) sizes.push_back(dim_size(dim, shape));
    const auto& given = spec.samples[slot].given->sizes;
    if (given != sizes) {
      return wrong_size(fmt::format("`{}` is [{}] in its file and [{}] at {}", tensor.name,
                                    fmt::join(given, ", "), fmt::join(sizes, ", "),
                                    to_string(shape)));
    }
  }
  return ok_status();
}

}  // namespace attune
