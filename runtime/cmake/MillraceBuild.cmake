# How every target of the project is compiled: warnings, ccache, linker, sanitizers.

set(MILLRACE_SANITIZE "" CACHE STRING "Sanitizers for all targets, e.g. address,undefined")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths relative to the checkout, so that another checkout of the same files finds them compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
endif()

add_library(millrace_options INTERFACE)
target_compile_options(millrace_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers>)
target_include_directories(millrace_options INTERFACE ${PROJECT_SOURCE_DIR})

find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  target_link_options(millrace_options INTERFACE -fuse-ld=mold)
endif()
# libtorch's CUDA half is opened at run time, where there is a GPU; its own needs are its own.
target_link_options(millrace_options INTERFACE -Wl,--allow-shlib-undefined)

if(MILLRACE_SANITIZE)
  # g++ 12 sees uninitialised values in its own <regex> and <functional> once they are instrumented.
  target_compile_options(millrace_options INTERFACE -Wno-maybe-uninitialized)
  target_compile_options(millrace_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${MILLRACE_SANITIZE} -fno-sanitize=vptr>)
  target_link_options(millrace_options INTERFACE -fsanitize=${MILLRACE_SANITIZE} -fno-sanitize=vptr)
endif()

# millrace_library(NAME SOURCES... ): a static library `millrace_NAME`, alias millrace::NAME.
function(millrace_library name)
  add_library(millrace_${name} STATIC ${ARGN})
  add_library(millrace::${name} ALIAS millrace_${name})
  target_link_libraries(millrace_${name} PUBLIC millrace_options)
endfunction()
