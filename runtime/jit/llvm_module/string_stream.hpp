// An output of Clang's that is a string of ours.
#pragma once

#include <llvm/Support/raw_ostream.h>

#include <cstdint>
#include <string>

namespace attune::llvm_module {

// Appends to a string that outlives the stream: Clang owns, and ends, the streams it writes to.
class StringStream final : public llvm::raw_pwrite_stream {
 public:
  explicit StringStream(std::string& text) : text_(text) { SetUnbuffered(); }

 private:
  void write_impl(const char* bytes, std::size_t size) override { text_.append(bytes, size); }
  void pwrite_impl(const char* bytes, std::size_t size, std::uint64_t offset) override {
    text_.replace(offset, size, bytes, size);
  }
  std::uint64_t current_pos() const override { return text_.size(); }

  std::string& text_;
};

}  // namespace attune::llvm_module
