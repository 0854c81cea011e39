#include "model.hpp"

#include <algorithm>
#include <cmath>

#include "shared.hpp"

namespace train {
namespace {

// Tensors begin at multiples of 64 bytes, which is more than kernels ask for.
constexpr std::size_t kAlignedElements = 16;

}  // namespace

template <typename T>
std::size_t Model<T>::add_parameter(const std::string& name, std::size_t size, bool decays) {
  std::size_t first = 0;
  if (!layout_.empty()) {
    first = layout_.back().first + layout_.back().size;
    first = (first + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
  }
  layout_.push_back({name, first, size, decays});
  return first;
}

template <typename T>
typename Model<T>::Saved Model<T>::make_saved() const {
  Memory& memory = dense_.memory();
  const auto make = [&](std::size_t columns) { return Array<T>(memory, rows_ * columns); };
  const AttentionShape& attention = shape_.attention;
  return {make(shape_.width),          make(1),
          make(shape_.width),          make(attention.qkv_columns()),
          make(attention.o_columns()), make(attention.heads),
          make(shape_.width),          make(1),
          make(shape_.width),          make(shape_.hidden),
          make(shape_.hidden)};
}

template <typename T>
Model<T>::Model(Dense<T>& dense, Attention<T>& attention, const ModelShape& shape,
                std::uint64_t seed)
    : dense_(dense),
      attention_(attention),
      shape_(shape),
      rows_(shape.attention.batch * shape.attention.length),
      embedding_(add_parameter("embedding", shape.vocabulary * shape.width, true)),
      final_norm_(add_parameter("norm", shape.width, false)),
      head_(add_parameter("head", shape.width * shape.vocabulary, true)),
      blocks_([&] {
        std::vector<Block> blocks;
        const AttentionShape& a = shape.attention;
        for (std::size_t layer = 0; layer < shape.layers; ++layer) {
          const std::string name = std::to_string(layer) + ".";
          blocks.push_back({add_parameter(name + "norm1", shape.width, false),
                            add_parameter(name + "qkv", shape.width * a.qkv_columns(), true),
                            add_parameter(name + "bias", a.heads * a.distances, false),
                            add_parameter(name + "out", a.o_columns() * shape.width, true),
                            add_parameter(name + "norm2", shape.width, false),
                            add_parameter(name + "up", shape.width * shape.hidden, true),
                            add_parameter(name + "down", shape.hidden * shape.width, true)});
        }
        return blocks;
      }()),
      parameters_(dense.memory(), layout_.back().first + layout_.back().size),
      gradients_(dense.memory(), parameters_.size()),
      tokens_(dense.memory(), rows_),
      targets_(dense.memory(), rows_),
      doc_(dense.memory(), rows_),
      x_(dense.memory(), rows_ * shape.width),
      inverse_(dense.memory(), rows_),
      normed_(dense.memory(), rows_ * shape.width),
      logits_(dense.memory(), rows_ * shape.vocabulary),
      d_x_(dense.memory(), rows_ * shape.width),
      d_row_(dense.memory(), rows_ * shape.width),
      d_o_(dense.memory(), rows_ * shape.attention.o_columns()),
      d_qkv_(dense.memory(), rows_ * shape.attention.qkv_columns()),
      d_hidden_(dense.memory(), rows_ * shape.hidden) {
  for (std::size_t layer = 0; layer < shape.layers; ++layer) saved_.push_back(make_saved());
  draw(seed);
}

// Gains are 1, biases 0. Products keep the size of what they are given; those that are added to the
// residual stream are smaller, so that all layers together make it as large as one would; the head
// is small, so that training begins at the loss of a uniform guess.
template <typename T>
void Model<T>::draw(std::uint64_t seed) {
  Random random(seed);
  std::vector<T> values(parameters_.size());
  const auto fill = [&](std::size_t first, std::size_t size, double deviation) {
    for (std::size_t i = 0; i < size; ++i) {
      values[first + i] = static_cast<T>(deviation * random.normal());
    }
  };
  const auto root = [](std::size_t n) { return 1 / std::sqrt(static_cast<double>(n)); };
  const AttentionShape& a = shape_.attention;
  const double residual = root(2 * shape_.layers);
  std::fill_n(&values[final_norm_], shape_.width, T{1});
  fill(embedding_, shape_.vocabulary * shape_.width, 0.5);
  fill(head_, shape_.width * shape_.vocabulary, 0.1 * root(shape_.width));
  for (const Block& block : blocks_) {
    std::fill_n(&values[block.norm1], shape_.width, T{1});
    std::fill_n(&values[block.norm2], shape_.width, T{1});
    fill(block.qkv, shape_.width * a.qkv_columns(), root(shape_.width));
    fill(block.out, a.o_columns() * shape_.width, residual * root(a.o_columns()));
    fill(block.up, shape_.width * shape_.hidden, root(shape_.width));
    fill(block.down, shape_.hidden * shape_.width, residual * root(shape_.hidden));
  }
  parameters_.write(values);
}

// No two launches of a training share an offset: what is dropped is drawn anew in each layer.
template <typename T>
AttentionPass<T> Model<T>::pass(std::size_t layer, std::uint64_t step) {
  Saved& s = saved_[layer];
  return {s.qkv.data(), weight(blocks_[layer].bias),
          doc_.data(),  step * shape_.layers + layer,
          s.o.data(),   s.lse.data()};
}

// A block's output is the next one's x.
template <typename T>
double Model<T>::forward(const Batch& batch, std::uint64_t step) {
  const std::size_t width = shape_.width, hidden = shape_.hidden;
  const AttentionShape& a = shape_.attention;
  tokens_.write(batch.tokens);
  targets_.write(batch.targets);
  doc_.write(batch.doc);
  dense_.embed(rows_, width, tokens_.data(), weight(embedding_), saved_[0].x.data());
  for (std::size_t layer = 0; layer < shape_.layers; ++layer) {
    const Block& block = blocks_[layer];
    Saved& s = saved_[layer];
    dense_.rms_norm(rows_, width, s.x.data(), weight(block.norm1), s.inverse1.data(),
                    s.normed1.data());
    dense_.multiply({rows_, a.qkv_columns(), width}, s.normed1.data(), weight(block.qkv),
                    s.qkv.data());
    attention_.forward(pass(layer, step));
    dense_.multiply({rows_, width, a.o_columns()}, s.o.data(), weight(block.out), s.y.data());
    dense_.add(rows_ * width, s.x.data(), s.y.data());

    dense_.rms_norm(rows_, width, s.y.data(), weight(block.norm2), s.inverse2.data(),
                    s.normed2.data());
    dense_.multiply({rows_, hidden, width}, s.normed2.data(), weight(block.up), s.up.data());
    dense_.gelu(rows_ * hidden, s.up.data(), s.active.data());
    T* next = layer + 1 < shape_.layers ? saved_[layer + 1].x.data() : x_.data();
    dense_.multiply({rows_, width, hidden}, s.active.data(), weight(block.down), next);
    dense_.add(rows_ * width, s.y.data(), next);
  }
  dense_.rms_norm(rows_, width, x_.data(), weight(final_norm_), inverse_.data(), normed_.data());
  dense_.multiply({rows_, shape_.vocabulary, width}, normed_.data(), weight(head_), logits_.data());
  return dense_.cross_entropy(rows_, shape_.vocabulary, targets_.data(), logits_.data());
}

// d_x_ is the gradient of the residual stream, to which each part's own is added on the way back.
template <typename T>
void Model<T>::backward(std::uint64_t step) {
  const std::size_t width = shape_.width, hidden = shape_.hidden;
  const AttentionShape& a = shape_.attention;
  // y = x w: the gradients of w, and of x.
  const auto product_gradient = [&](std::size_t in, std::size_t out, const T* x, std::size_t w,
                                    const T* d_y, T* d_x) {
    dense_.multiply({in, out, rows_, true, false}, x, d_y, gradient(w));
    dense_.multiply({rows_, in, out, false, true}, d_y, weight(w), d_x);
  };
  product_gradient(width, shape_.vocabulary, normed_.data(), head_, logits_.data(), d_row_.data());
  d_x_.zero();
  dense_.rms_norm_gradient(rows_, width, x_.data(), weight(final_norm_), inverse_.data(),
                           d_row_.data(), d_x_.data(), gradient(final_norm_));
  for (std::size_t layer = shape_.layers; layer-- > 0;) {
    const Block& block = blocks_[layer];
    const Saved& s = saved_[layer];
    product_gradient(hidden, width, s.active.data(), block.down, d_x_.data(), d_hidden_.data());
    dense_.gelu_gradient(rows_ * hidden, s.up.data(), d_hidden_.data(), d_hidden_.data());
    product_gradient(width, hidden, s.normed2.data(), block.up, d_hidden_.data(), d_row_.data());
    dense_.rms_norm_gradient(rows_, width, s.y.data(), weight(block.norm2), s.inverse2.data(),
                             d_row_.data(), d_x_.data(), gradient(block.norm2));

    product_gradient(a.o_columns(), width, s.o.data(), block.out, d_x_.data(), d_o_.data());
    attention_.backward(pass(layer, step), {d_o_.data(), d_qkv_.data(), gradient(block.bias)});
    product_gradient(width, a.qkv_columns(), s.normed1.data(), block.qkv, d_qkv_.data(),
                     d_row_.data());
    dense_.rms_norm_gradient(rows_, width, s.x.data(), weight(block.norm1), s.inverse1.data(),
                             d_row_.data(), d_x_.data(), gradient(block.norm1));
  }
  dense_.embed_gradient(rows_, width, shape_.vocabulary, tokens_.data(), d_x_.data(),
                        gradient(embedding_));
}

template <typename T>
double Model<T>::loss_and_gradients(const Batch& batch, std::uint64_t step) {
  const double loss = forward(batch, step);
  backward(step);
  return loss;
}

template <typename T>
double Model<T>::loss(const Batch& batch, std::uint64_t step) {
  return forward(batch, step);
}

template class Model<float>;
template class Model<double>;

}  // namespace train
