# FindCAF: the C++ Actor Framework as Debian ships it (0.17 has no CMake package of its own).
# Provides the targets CAF::core, CAF::io, CAF::openssl and the variable CAF_VERSION.

find_path(CAF_INCLUDE_DIR caf/all.hpp)
find_library(CAF_core_LIBRARY caf_core)
find_library(CAF_io_LIBRARY caf_io)
find_library(CAF_openssl_LIBRARY caf_openssl)

if(CAF_INCLUDE_DIR)
  file(STRINGS ${CAF_INCLUDE_DIR}/caf/config.hpp _caf_version REGEX "#define CAF_VERSION ")
  string(REGEX REPLACE "[^0-9]" "" _caf_version "${_caf_version}")
  math(EXPR _major "${_caf_version} / 10000")
  math(EXPR _minor "(${_caf_version} / 100) % 100")
  math(EXPR _patch "${_caf_version} % 100")
  set(CAF_VERSION ${_major}.${_minor}.${_patch})
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CAF
  REQUIRED_VARS CAF_core_LIBRARY CAF_io_LIBRARY CAF_openssl_LIBRARY CAF_INCLUDE_DIR
  VERSION_VAR CAF_VERSION
  REASON_FAILURE_MESSAGE "on Debian: apt-get install libcaf-dev libssl-dev")

if(CAF_FOUND AND NOT TARGET CAF::core)
  find_package(OpenSSL REQUIRED)
  foreach(part core io openssl)
    add_library(CAF::${part} UNKNOWN IMPORTED)
    set_target_properties(CAF::${part} PROPERTIES IMPORTED_LOCATION ${CAF_${part}_LIBRARY}
                          INTERFACE_INCLUDE_DIRECTORIES ${CAF_INCLUDE_DIR})
  endforeach()
  target_link_libraries(CAF::io INTERFACE CAF::core)
  target_link_libraries(CAF::openssl INTERFACE CAF::io OpenSSL::SSL)
endif()
