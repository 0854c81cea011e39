# A reference page of the public headers, from their comments and declarations:
#   awk -f scripts/api_reference.awk runtime/include/attune/attune.h runtime/include/attune/attune.hpp
# An entry is a comment at the left margin and the declarations up to the next blank line or comment.
# Of a class it shows the public part, without bodies.

function text_of(comment) {
  gsub(/(^|\n)[ \t]*(\/\*+|\*\/|\*|\/\/)[ \t]?/, "\n", comment)
  sub(/[ \t]*\*\/[ \t\n]*$/, "", comment)
  sub(/^\n+/, "", comment)
  sub(/\n+$/, "", comment)
  return comment
}

# As Markdown shows it unchanged.
function escaped(text) {
  gsub(/[*<]/, "\\\\&", text)
  return text
}

# Names that the declarations introduce, for a heading.
function names_of(code,    lines, count, i, line, found, name) {
  count = split(code, lines, "\n")
  found = ""
  for (i = 1; i <= count; ++i) {
    line = lines[i]
    name = ""
    if (match(line, /^(enum class|class|struct) [^:{]*[A-Za-z]/)) {
      name = substr(line, RSTART, RLENGTH)
      sub(/.*[ \]]/, "", name)
    } else if (match(line, /^typedef (enum|struct|union) [a-z_]+/)) {
      name = substr(line, RSTART, RLENGTH)
      sub(/.* /, "", name)
    } else if (match(line, /^using [A-Za-z]+/)) {
      name = substr(line, RSTART + 6, RLENGTH - 6)
    } else if (match(line, /^#define ATT[A-Z_]+/)) {
      name = substr(line, RSTART + 8, RLENGTH - 8)
    } else if (line ~ /^ATT_API/ && match(line, /att_[a-z_]+\(/)) {
      name = substr(line, RSTART, RLENGTH - 1)
    }
    if (name != "") found = found (found == "" ? "" : ", ") "`" name "`"
  }
  return found
}

function flush_entry(    names) {
  if (code != "") {
    names = names_of(code)
    if (names != "") {
      printf "%s %s\n\n", is_c ? "####" : "###", names
      if (comment != "") printf "%s\n\n", escaped(text_of(comment))
      printf "```%s\n%s```\n\n", language, code
    }
  }
  comment = code = ""
}

# A member of a class without its body.
function signature(member,    rest) {
  if (!match(member, /\)( const)?( noexcept)?[ \n]*(:[^;]*)?\{/)) return member
  rest = substr(member, RSTART + 1, RLENGTH - 1)
  return substr(member, 1, RSTART) (rest ~ /^ const/ ? " const" : "") ";\n"
}

# One line of a class: members are gathered up to their end, public ones are shown.
function class_line(line,    braces) {
  if (member == "" && line ~ /^};?$/) {
    sub(/\n\n$/, "\n", code)
    code = code "};\n"
    in_class = 0
    return
  }
  if (member == "" && line ~ /^ (public|private|protected):$/) {
    hidden = line !~ /public/
    return
  }
  member = member line "\n"
  braces = line
  depth += gsub(/\{/, "", braces)
  depth -= gsub(/\}/, "", braces)
  if (depth > 0 || (line !~ /[;}]$/ && line !~ /^ *\/\// && line !~ /; +\/\// && line != "")) return
  if (!hidden) code = code (line ~ /^ *\/\// ? member : signature(member))
  member = ""
}

BEGIN {
  print "# API reference\n"
  print "`make docs` writes this page from the headers in `runtime/include/attune`: the C interface is the"
  print "contract, the C++ one a header over it.\n"
}

FNR == 1 {
  if (NR > 1) flush_entry()
  is_c = FILENAME ~ /\.h$/
  language = is_c ? "c" : "cpp"
  printf "## %s\n\n", is_c ? "C: attune/attune.h" : "C++: attune/attune.hpp"
  preamble = 1
  in_class = in_comment = 0
  comment = code = ""
}

# The comment at the top is the section's introduction.
preamble {
  if ($0 ~ /^(\/\*|\/\/| \*)/) {
    comment = comment $0 "\n"
    next
  }
  intro = text_of(comment)
  # What is indented in it is code.
  count = split(intro, rows, "\n")
  for (i = 1; i <= count; ++i) {
    if (rows[i] ~ /^  / && rows[i - 1] !~ /^(  .*)?$/) print ""
    print (rows[i] ~ /^  / ? "  " : "") rows[i]
  }
  print ""
  comment = ""
  preamble = 0
}

in_class { class_line($0); next }

# A section: "/* ---- Kernels */".
/^\/\* ---- / {
  flush_entry()
  sub(/^\/\* ---- /, "")
  sub(/ *\*\/$/, "")
  printf "### %s\n\n", $0
  next
}
/^\/\*/ { flush_entry(); in_comment = 1 }
in_comment {
  comment = comment $0 "\n"
  if ($0 ~ /\*\//) in_comment = 0
  next
}
/^\/\// {
  if (code != "") flush_entry()
  comment = comment $0 "\n"
  next
}
/^(#|extern "C"|namespace|inline namespace|})/ && !/^#define ATT[A-Z_]*VERSION/ && !(is_c && code != "") { flush_entry(); next }
/^$/ { flush_entry(); next }
/^template <typename T>$/ && !is_c { code = code $0 "\n"; next }
/^(class|struct) .*\{$/ && !is_c {
  code = code $0 "\n"
  in_class = 1
  depth = 0
  hidden = $0 ~ /^class/
  member = ""
  next
}
{ code = code $0 "\n" }
END { flush_entry() }
