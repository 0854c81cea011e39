#include "text.hpp"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <set>

#include "shared.hpp"

namespace train {

Corpus Corpus::from_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(Exit::kBadInput, path + ": cannot be read");
  std::vector<std::string> paragraphs;
  bool begins = true;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) {
      begins = true;
    } else if (begins) {
      paragraphs.push_back(line);
      begins = false;
    } else {
      paragraphs.back() += ' ' + line;
    }
  }
  if (paragraphs.empty()) throw Error(Exit::kBadInput, path + ": no paragraph in it");

  Corpus corpus;
  std::set<char> characters;
  for (const std::string& text : paragraphs) characters.insert(text.begin(), text.end());
  corpus.characters_.assign(characters.begin(), characters.end());
  for (const std::string& text : paragraphs) {
    std::vector<std::int32_t>& tokens = corpus.documents_.emplace_back();
    for (const char c : text) {
      tokens.push_back(static_cast<std::int32_t>(corpus.characters_.find(c)) + 1);
    }
  }
  return corpus;
}

std::size_t Corpus::tokens() const {
  std::size_t count = 0;
  for (const auto& document : documents_) count += document.size() + 1;
  return count;
}

Packer::Packer(const Corpus& corpus, std::size_t batch, std::size_t length, std::uint64_t seed)
    : corpus_(corpus),
      batch_(batch),
      length_(length),
      random_(seed),
      order_(corpus.documents().size()) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  shuffle();
}

void Packer::shuffle() {
  for (std::size_t i = order_.size(); i > 1; --i)
    std::swap(order_[i - 1], order_[random_.below(i)]);
}

// The mark stands in front of a document as a token, behind it as a target.
Batch Packer::next() {
  Batch batch;
  for (std::size_t row = 0; row < batch_; ++row) {
    std::int32_t doc = 0;
    for (std::size_t i = 0; i < length_; ++i) {
      const std::vector<std::int32_t>& text = corpus_.documents()[order_[document_]];
      batch.tokens.push_back(position_ == 0 ? 0 : text[position_ - 1]);
      batch.targets.push_back(position_ == text.size() ? 0 : text[position_]);
      batch.doc.push_back(doc);
      if (position_++ < text.size()) continue;
      position_ = 0;
      ++doc;
      if (++document_ < order_.size()) continue;
      document_ = 0;
      shuffle();
    }
  }
  return batch;
}

}  // namespace train
