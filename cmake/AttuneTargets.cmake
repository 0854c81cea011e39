# The few CMake functions that every directory uses.

# attune_library(NAME SOURCES ... DEPENDS ...): an internal static library; includes are from the
# root.
function(attune_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_DEPENDS})
  attune_warnings(${name})
  attune_precompile(${name})
endfunction()

# What most sources include is parsed once for all libraries, with the first one's options, and once
# for executables: it is a third of what the libraries take to compile. Sources include what they use
# all the same: with CMAKE_DISABLE_PRECOMPILE_HEADERS, which builds with ccache set, they must.
function(attune_precompile name)
  get_target_property(type ${name} TYPE)
  set(owner attune_support)
  if(type STREQUAL EXECUTABLE)
    set(owner attune_cli)
  endif()
  if(name STREQUAL owner)
    target_precompile_headers(
      ${name} PRIVATE <algorithm> <cstdint> <functional> <map> <memory> <optional> <set> <span> <string>
                      <string_view> <variant> <vector> <fmt/format.h>)
  else()
    target_precompile_headers(${name} REUSE_FROM ${owner})
  endif()
endfunction()

# Designated initialisers that leave members at their defaults are the style here, hence the first
# exception. The second: Clang reports libstdc++'s own std::stable_sort, which uses what C++17
# deprecated.
function(attune_warnings name)
  target_compile_options(
    ${name} PRIVATE -Wall -Wextra -Wno-missing-field-initializers
                    $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations> $<$<BOOL:${ATTUNE_WERROR}>:-Werror>)
endfunction()

# Tests' own code is compiled as fast as can be: it took two thirds of a build, most of it in code
# that GoogleTest's macros make. Under a sanitizer it is the libraries that are looked at.
function(attune_test_options name)
  target_compile_options(${name} PRIVATE -O0)
  if(ATTUNE_SANITIZE AND NOT ATTUNE_SANITIZE STREQUAL "thread")
    target_compile_options(${name} PRIVATE -fno-sanitize=undefined,fuzzer-no-link)
  endif()
endfunction()

# attune_joined(OUT NAME SOURCES...): what is compiled in place of a test's sources: the same text, ten
# of them at once, which takes a third of the compiler's time. The rest goes into what GoogleTest's
# macros and the standard library make anew in every source.
function(attune_joined out name)
  set(most 10)
  set(joined "")
  list(LENGTH ARGN count)
  math(EXPR last "${count} - 1")
  foreach(begin RANGE 0 ${last} ${most})
    list(SUBLIST ARGN ${begin} ${most} sources)
    list(TRANSFORM sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ REGEX "^[^/]")
    list(JOIN sources "|" text)
    set(output ${CMAKE_CURRENT_BINARY_DIR}/${name}_${begin}.cpp)
    add_custom_command(
      OUTPUT ${output}
      COMMAND ${CMAKE_COMMAND} -D "SOURCES=${text}" -D ROOT=${PROJECT_SOURCE_DIR} -D OUTPUT=${output}
              -P ${PROJECT_SOURCE_DIR}/cmake/JoinSources.cmake
      DEPENDS ${sources} ${PROJECT_SOURCE_DIR}/cmake/JoinSources.cmake
      VERBATIM)
    list(APPEND joined ${output})
  endforeach()
  set(${out} ${joined} PARENT_SCOPE)
endfunction()

# attune_test(NAME LABEL label [TOGETHER] [SEPARATE] SOURCES ... DEPENDS ...): one GoogleTest binary, one
# ctest entry a test; TOGETHER one for all, where a process takes longer to start than a test to run.
# Sources are joined, and so their helpers lie in unnamed namespaces; with SEPARATE, where names meet all
# the same, each is compiled alone. Tests run in the root of the repository: they name its files by
# relative paths.
function(attune_test name)
  cmake_parse_arguments(ARG "TOGETHER;SEPARATE" "LABEL" "SOURCES;DEPENDS" ${ARGN})
  list(LENGTH ARG_SOURCES count)
  if(count GREATER 1 AND NOT ARG_SEPARATE)
    attune_joined(ARG_SOURCES ${name} ${ARG_SOURCES})
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} attune_fmt GTest::gtest GTest::gmock GTest::gtest_main)
  attune_warnings(${name})
  attune_test_options(${name})
  target_precompile_headers(${name} REUSE_FROM attune_tests_precompiled)
  if(ARG_TOGETHER)
    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT 300)
  else()
    gtest_discover_tests(${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT 300 DISCOVERY_TIMEOUT 60)
  endif()
endfunction()

# attune_embed(OUTPUT file.cpp ACCESSOR name ROOT dir FILES ...): the files' bytes as a C++ table,
#   std::span<const attune::EmbeddedFile> attune::name();   paths are relative to ROOT.
function(attune_embed)
  cmake_parse_arguments(ARG "" "OUTPUT;ACCESSOR;ROOT" "FILES" ${ARGN})
  string(JOIN "|" files ${ARG_FILES})
  add_custom_command(
    OUTPUT ${ARG_OUTPUT}
    COMMAND ${CMAKE_COMMAND} -D "FILES=${files}" -D ROOT=${ARG_ROOT} -D ACCESSOR=${ARG_ACCESSOR}
            -D OUTPUT=${ARG_OUTPUT} -P ${PROJECT_SOURCE_DIR}/cmake/EmbedFiles.cmake
    DEPENDS ${ARG_FILES} ${PROJECT_SOURCE_DIR}/cmake/EmbedFiles.cmake
    VERBATIM)
  # Those who read sources only, as the linter does, have no need to make it.
  set_source_files_properties(${ARG_OUTPUT} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
