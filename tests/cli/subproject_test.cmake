# Takes Attune into another project by add_subdirectory: attune::attune is there, nothing but the
# library is, and a host compiles against it. SOURCE: the repository; WORK: a directory to fill;
# GENERATOR: of the build.
file(REMOVE_RECURSE ${WORK})
file(WRITE ${WORK}/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(host LANGUAGES C CXX)
add_subdirectory(${SOURCE} attune)
if(TARGET attune_cli OR TARGET c_api_test)
  message(FATAL_ERROR \"more than the library is built\")
endif()
add_executable(host ${SOURCE}/examples/host_app_c/main.c)
target_link_libraries(host PRIVATE attune::attune)
add_library(host_objects OBJECT ${SOURCE}/examples/host_app_c/main.c)
# Not linked with it, which would build the library.
target_include_directories(host_objects PRIVATE \$<TARGET_PROPERTY:attune::attune,INTERFACE_INCLUDE_DIRECTORIES>)
")
foreach(step "-S;${WORK};-B;${WORK}/build;-G;${GENERATOR};-DATTUNE_LLVM=OFF"
             "--build;${WORK}/build;--target;host_objects")
  execute_process(COMMAND ${CMAKE_COMMAND} ${step} RESULT_VARIABLE result OUTPUT_VARIABLE output
                  ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${step}\nended with ${result}:\n${output}")
  endif()
endforeach()
