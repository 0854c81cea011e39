# Installs Attune into an empty prefix that nothing was configured for, builds the examples against
# it as strangers would, and runs them. BUILD: Attune's build directory; SOURCE: the repository;
# WORK: a directory to fill; LIBDIR: lib, in a prefix.
set(prefix ${WORK}/prefix)
# So deep that no `lib` directory of the build tree lies above the applications: what they find is
# the prefix'.
set(hosts ${WORK}/hosts/of/strangers/elsewhere/built)
file(REMOVE_RECURSE ${WORK})

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGV}\nended with ${result}:\n${output}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
set(libraries ${prefix}/${LIBDIR})

# What is seen from outside is the C interface, each function under the version that brought it.
execute_process(COMMAND nm -D --defined-only --format=posix --with-symbol-versions ${libraries}/libattune.so
                OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" symbols "${symbols}")
foreach(symbol IN LISTS symbols)
  if(NOT symbol MATCHES "^att_[a-z_]+@@ATTUNE_0\\.[0-9]+ T|^ATTUNE_0\\.[0-9]+(@@ATTUNE_0\\.[0-9]+)? A")
    message(FATAL_ERROR "libattune.so exports more than versioned att_*: ${symbol}")
  endif()
endforeach()
file(READ ${SOURCE}/runtime/include/attune/attune.h header)
string(REGEX MATCHALL "ATT_API [^(;]*[ *]att_[a-z_]+\\(" declarations "${header}")
foreach(declaration IN LISTS declarations)
  string(REGEX REPLACE ".*(att_[a-z_]+)\\($" "\\1" name "${declaration}")
  if(NOT symbols MATCHES "(^|;)${name}@@")
    message(FATAL_ERROR "attune.h declares ${name}, and libattune.so does not have it")
  endif()
endforeach()

# check(NAME EXECUTABLE [ARGUMENT ...]): the application computes what is right; where no code can be
# made here, because the module for it was not built, it says so with exit code 3.
function(check name executable)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ATTUNE_CACHE=${WORK}/attune.db
                          ${executable} ${ARGN}
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message("${name}:\n${output}")
  if(result EQUAL 0 AND output MATCHES "\\(right\\)")
    return()
  endif()
  if(NOT result EQUAL 3 OR NOT output MATCHES "no (runtime|kernel): |^(train|serve): " OR EXISTS ${libraries}/libattune_llvm.so)
    message(FATAL_ERROR "${name} ended with ${result}")
  endif()
endfunction()

# Each is one source here, which takes a quarter of the time: this build has compiled file by file.
set(arguments_of_train --compare --steps 2 --batch 1)
set(arguments_of_serve --requests 4)
foreach(example host_app host_app_c train serve)
  run(${CMAKE_COMMAND} -S ${SOURCE}/examples/${example} -B ${hosts}/${example}
      -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_BUILD_TYPE=Debug
      -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0)
  run(${CMAKE_COMMAND} --build ${hosts}/${example})
  check(${example} ${hosts}/${example}/${example} ${arguments_of_${example}})
endforeach()

find_program(pkg_config NAMES pkg-config pkgconf)
find_program(compiler NAMES cc gcc clang)
if(NOT pkg_config OR NOT compiler)
  message("pkg-config: not tried, it or a C compiler is missing")
  return()
endif()
set(ENV{PKG_CONFIG_PATH} ${libraries}/pkgconfig)
foreach(package attune attune-static)
  execute_process(COMMAND ${pkg_config} --cflags --libs ${package} OUTPUT_VARIABLE flags
                  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  if(package STREQUAL attune)  # how the host finds a shared library is its own affair
    list(APPEND flags -Wl,-rpath,${libraries})
  endif()
  run(${compiler} -std=c11 -pedantic -Wall -Wextra -Werror -o ${hosts}/${package} ${SOURCE}/examples/host_app_c/main.c
      ${flags} -lm -ldl)
  check(${package} ${hosts}/${package})
endforeach()
