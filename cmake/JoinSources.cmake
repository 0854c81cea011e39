# Writes OUTPUT: SOURCES ('|'-separated paths in ROOT) one after the other, each as if it were alone: its
# unnamed namespaces lie in one of its own, so that helpers of one name do not meet.
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
