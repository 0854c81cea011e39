# libattune for others: one shared library that exports att_* alone, one archive with everything in
# it, the headers, and the files of find_package(attune) and pkg-config.
include(CMakePackageConfigHelpers)
set(package_source ${CMAKE_CURRENT_LIST_DIR})
set(package_made ${CMAKE_CURRENT_BINARY_DIR}/package)
find_package(SQLiteCpp REQUIRED)  # seen here, for the archive

add_library(attune SHARED $<TARGET_OBJECTS:attune_capi> $<TARGET_OBJECTS:attune_host_tuning>)
add_library(attune::attune ALIAS attune)  # for whoever takes Attune in by add_subdirectory
target_link_libraries(attune PRIVATE attune_host_tuning)
# The C++ library goes in: the host's may be older, and archives that are not position independent
# (Debian's yaml-cpp) can then be linked, their symbols being hidden.
target_link_options(attune PRIVATE -static-libstdc++ -static-libgcc LINKER:--exclude-libs,ALL
                    LINKER:--no-undefined LINKER:--no-undefined-version LINKER:-z,nodelete
                    LINKER:--version-script=${package_source}/exports.map)
set_property(TARGET attune PROPERTY LINK_DEPENDS ${package_source}/exports.map)
target_include_directories(attune INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                           $<BUILD_INTERFACE:${package_source}/include>)
set_target_properties(attune PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)

# Every archive that a target needs, ours and others', without repetition.
function(attune_archives target found)
  set(archives ${${found}})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL STATIC_LIBRARY OR type STREQUAL UNKNOWN_LIBRARY)
    list(APPEND archives $<TARGET_FILE:${target}>)
  endif()
  get_target_property(needed ${target} INTERFACE_LINK_LIBRARIES)
  foreach(library IN LISTS needed)
    string(REGEX REPLACE "^\\$<(LINK_ONLY|TARGET_NAME_IF_EXISTS):(.*)>$" "\\2" library "${library}")
    if(library MATCHES "\\.a$")
      list(APPEND archives ${library})
    elseif(TARGET ${library} AND NOT "$<TARGET_FILE:${library}>" IN_LIST archives)
      attune_archives(${library} archives)
    endif()
  endforeach()
  list(REMOVE_DUPLICATES archives)
  set(${found} ${archives} PARENT_SCOPE)
endfunction()
set(archives "")
attune_archives(attune_host_tuning archives)

# An archive of archives is what `ar` scripts are for.
set(script "create ${PROJECT_BINARY_DIR}/lib/libattune.a\n")
foreach(archive IN LISTS archives)
  string(APPEND script "addlib ${archive}\n")
endforeach()
file(GENERATE OUTPUT ${package_made}/libattune.ar CONTENT "${script}save\nend\n")
add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/lib/libattune.a
                   COMMAND ${CMAKE_AR} -M < ${package_made}/libattune.ar
                   DEPENDS attune_host_tuning ${archives} ${package_made}/libattune.ar
                   COMMENT "Bundling libattune.a" VERBATIM)
add_custom_target(attune_static ALL DEPENDS ${PROJECT_BINARY_DIR}/lib/libattune.a)

install(TARGETS attune EXPORT attuneTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_BINARY_DIR}/lib/libattune.a DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${package_source}/include/attune DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attune)
install(EXPORT attuneTargets NAMESPACE attune:: DESTINATION ${package_dir})
configure_package_config_file(${package_source}/attuneConfig.cmake.in ${package_made}/attuneConfig.cmake
                              INSTALL_DESTINATION ${package_dir} PATH_VARS CMAKE_INSTALL_LIBDIR
                              CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${package_made}/attuneConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${package_made}/attuneConfig.cmake
              ${package_made}/attuneConfigVersion.cmake DESTINATION ${package_dir})

# The files of pkg-config name the prefix from where they lie, so that it may be moved.
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH prefix_from_pkgconfig ${CMAKE_INSTALL_PREFIX}/${pkgconfig_dir} ${CMAKE_INSTALL_PREFIX})
foreach(name attune attune-static)
  configure_file(${package_source}/${name}.pc.in ${package_made}/${name}.pc @ONLY)
  install(FILES ${package_made}/${name}.pc DESTINATION ${pkgconfig_dir})
endforeach()
