# Writes OUTPUT: SOURCES ('|'-separated paths in ROOT) one after the other. The unnamed namespaces of each lie in
# one of its own, so that it may define what a file before it has defined. They stay visible below: a file can use
# helpers of those before it unnoticed, and a name that two files have is ambiguous where neither's own namespace
# encloses it. Such files want SEPARATE.
string(REPLACE "|" ";" SOURCES "${SOURCES}")
# GCC takes what #line names for a header, where tests with fixtures in unnamed namespaces would be wrong.
set(joined "#ifndef __clang__\n#pragma GCC diagnostic ignored \"-Wsubobject-linkage\"\n#endif\n")
set(number 0)
foreach(source IN LISTS SOURCES)
  file(READ ${source} text)
  file(RELATIVE_PATH path ${ROOT} ${source})
  set(own of_${number})
  string(REPLACE "\nnamespace {\n" "\nnamespace ${own} { namespace {\n" text "${text}")
  string(REPLACE "\n}  // namespace\n" "\n}} using namespace ${own};\n" text "${text}")
  string(APPEND joined "#line 1 \"${path}\"\n${text}")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT} "${joined}")
