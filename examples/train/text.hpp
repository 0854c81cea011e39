// The text to learn, and how its documents are packed into batches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared.hpp"

namespace train {

// Documents as tokens: 0 is the mark between documents, the others are the characters that occur.
class Corpus {
 public:
  // A file of paragraphs with empty lines in between; each is a document, its line ends are blanks.
  // Throws Error when there is no such file or no paragraph in it.
  static Corpus from_file(const std::string& path);

  std::size_t vocabulary() const { return characters_.size() + 1; }
  std::size_t tokens() const;
  const std::vector<std::vector<std::int32_t>>& documents() const { return documents_; }

 private:
  std::string characters_;  // of the tokens from 1 on
  std::vector<std::vector<std::int32_t>> documents_;
};

// [batch, length] each.
struct Batch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;  // the tokens that come next
  std::vector<std::int32_t> doc;      // counts the documents of a row
};

// Rows that documents fill one behind the other, in a new order each time that all have been read.
// A document that a row's end cuts goes on in the next row as one of its own.
class Packer {
 public:
  // `corpus` must outlive it.
  Packer(const Corpus& corpus, std::size_t batch, std::size_t length, std::uint64_t seed);
  Batch next();

 private:
  void shuffle();

  const Corpus& corpus_;
  std::size_t batch_, length_;
  Random random_;
  std::vector<std::size_t> order_;
  std::size_t document_ = 0,
              position_ = 0;  // what comes next: a place in order_, and in its tokens
};

}  // namespace train
