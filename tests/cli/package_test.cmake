# Installs Attune into an empty prefix, builds both host applications against it as a stranger would,
# and runs them. BUILD: Attune's build directory; SOURCE: the repository; WORK: a directory to fill.
set(prefix ${WORK}/prefix)
file(REMOVE_RECURSE ${WORK})

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGV}\nended with ${result}:\n${output}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
# Nothing of ours but the C interface is seen from outside.
execute_process(COMMAND nm -D --defined-only --format=posix ${prefix}/${LIBDIR}/libattune.so
                OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "(^|\n)att_[^\n]*" "" strangers "${symbols}")
string(STRIP "${strangers}" strangers)
if(NOT strangers STREQUAL "")
  message(FATAL_ERROR "libattune.so exports more than att_*:\n${strangers}")
endif()

foreach(example host_app host_app_c)
  run(${CMAKE_COMMAND} -S ${SOURCE}/examples/${example} -B ${WORK}/${example}
      -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_BUILD_TYPE=Release)
  run(${CMAKE_COMMAND} --build ${WORK}/${example})
  execute_process(COMMAND ${CMAKE_COMMAND} -E env ATTUNE_CACHE=${WORK}/attune.db
                          LD_LIBRARY_PATH=${prefix}/${LIBDIR}
                          ${WORK}/${example}/${example}
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message("${example}:\n${output}")
  # 3: nothing here to run it on, which it must say.
  if(result EQUAL 0 AND output MATCHES "\\(right\\)")
    continue()
  endif()
  if(NOT result EQUAL 3 OR NOT output MATCHES "no (runtime|kernel): ")
    message(FATAL_ERROR "${example} ended with ${result}")
  endif()
endforeach()
