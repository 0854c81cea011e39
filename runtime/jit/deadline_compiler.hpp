// A compiler that no spec can keep an application waiting for: specs come from anywhere, and what
// an optimizer or ptxas makes of a long expression nobody knows beforehand.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "runtime/jit/compiler.hpp"

namespace attune {

// Many times what the slowest kernel of the library takes, on a machine with other work.
inline constexpr double kCompileSeconds = 120;
// Of source. Kernels of the library have a tenth; memory, which cannot be limited within a process,
// grows with it (the longest expressions that a spec may have take LLVM 150 MB).
inline constexpr std::size_t kMostSourceBytes = std::size_t{2} << 20;
// Compiles that were given up and still run. Beyond so many, none is begun.
inline constexpr int kMostGivenUp = 2;

inline constexpr std::string_view kCompileDeadline = "compile-deadline";
// Of one that did not begin, as too many of those still run.
inline constexpr std::string_view kCompileStuck = "compile-stuck";

// Compiles by `compiler`, each on a thread of its own; `on_thread`, which must not throw, is called
// there first, before the time counts, and what it returns lives as long as the compile. After
// `seconds` compile() returns kFailed, kCompileDeadline, and the thread is given up: a compiler
// cannot be stopped, so it runs to its end and its code is dropped. kCompileStuck where
// kMostGivenUp of those still run, "source-too-large" beyond kMostSourceBytes. Thread-safe. A
// thread that was given up outlives this object.
std::unique_ptr<Compiler> with_deadline(
    std::unique_ptr<Compiler> compiler, double seconds = kCompileSeconds,
    std::function<std::shared_ptr<void>()> on_thread = [] { return nullptr; });

}  // namespace attune
