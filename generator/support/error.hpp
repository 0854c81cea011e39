// The one error type of Attune, and the position of a mistake in user-written text.
#pragma once

#include <string>
#include <string_view>

namespace attune {

// What the caller can do about an error; the command's exit code follows from it.
enum class ErrorKind {
  kFailed,       // something that should work did not (exit 1)
  kBadInput,     // a spec, an option or a file is wrong (exit 2)
  kUnsupported,  // well-formed, but this family or target cannot do it (exit 2)
  kUnavailable,  // the device, compiler or library to do it with is not here (exit 3)
};

// A range of user text. Lines and columns count from 1, columns in bytes; line 0 means unknown.
struct SourceSpan {
  int line = 0;
  int column = 0;
  int length = 1;
};

struct Error {
  ErrorKind kind = ErrorKind::kFailed;
  std::string id = {};           // stable and machine-readable, kebab-case: "spec-unknown-key"
  std::string message = {};      // one line, no full stop: "unknown key `maks`"
  std::string file = {};         // empty when the text did not come from a file
  SourceSpan span = {};          // where in that file
  std::string source_line = {};  // the offending line, shown above the caret
  std::string hint = {};         // one line of help: "did you mean `mask`?"
  std::string detail = {};       // long text for whoever debugs: a compiler's log, numbered source
};

enum class Severity { kWarning, kError };

// "file:line:column: error: message [id]" (or "warning: "), the source line with a caret under the
// span, the hint and the detail. Ends in a newline.
std::string render(const Error& error, Severity severity = Severity::kError);

// 1, 2 or 3, as the table above says.
int exit_code(ErrorKind kind);

}  // namespace attune
