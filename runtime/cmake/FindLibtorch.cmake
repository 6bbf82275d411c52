# FindLibtorch: libtorch from the PyPI wheel or the zip archive, for running on CPU or GPU.
#
# Looked for in Libtorch_ROOT, CMAKE_PREFIX_PATH, and where ./quickstart puts it. TorchConfig.cmake
# is not used on purpose: for a wheel built with CUDA it insists on a whole CUDA toolkit, while
# libtorch_cpu.so needs two small CUDA libraries only, and libtorch_cuda.so is opened at run time.
#
# Provides the target Libtorch::torch and the variable Libtorch_VERSION; where it has a CUDA half also
# Libtorch_CUDA_LIBRARY and Libtorch_C10_CUDA_LIBRARY.

if(DEFINED ENV{XDG_CACHE_HOME})
  set(_millrace_cache $ENV{XDG_CACHE_HOME}/millrace)
else()
  set(_millrace_cache $ENV{HOME}/.cache/millrace)
endif()
file(GLOB _quickstart_torch ${_millrace_cache}/libtorch-*/torch)

find_path(Libtorch_INCLUDE_DIR torch/csrc/api/include/torch/torch.h
  HINTS ${Libtorch_ROOT} PATHS ${_quickstart_torch}
  PATH_SUFFIXES include torch/include ../../include) # the last: torch.utils.cmake_prefix_path
if(Libtorch_INCLUDE_DIR)
  get_filename_component(_libtorch_root ${Libtorch_INCLUDE_DIR} DIRECTORY)
  find_library(Libtorch_CPU_LIBRARY torch_cpu HINTS ${_libtorch_root}/lib NO_DEFAULT_PATH)
  find_library(Libtorch_C10_LIBRARY c10 HINTS ${_libtorch_root}/lib NO_DEFAULT_PATH)
  find_library(Libtorch_CUDA_LIBRARY torch_cuda HINTS ${_libtorch_root}/lib NO_DEFAULT_PATH)
  find_library(Libtorch_C10_CUDA_LIBRARY c10_cuda HINTS ${_libtorch_root}/lib NO_DEFAULT_PATH)
  find_file(_libtorch_version_header NAMES version.h
    HINTS ${Libtorch_INCLUDE_DIR}/torch/headeronly ${Libtorch_INCLUDE_DIR}/torch/csrc/api/include/torch
    NO_DEFAULT_PATH NO_CACHE)
  if(_libtorch_version_header)
    file(STRINGS ${_libtorch_version_header} _v REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3"
           Libtorch_VERSION "${_v}")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch
  REQUIRED_VARS Libtorch_CPU_LIBRARY Libtorch_C10_LIBRARY Libtorch_INCLUDE_DIR
  VERSION_VAR Libtorch_VERSION
  REASON_FAILURE_MESSAGE "run ./quickstart build, which installs it, or set CMAKE_PREFIX_PATH")

if(Libtorch_FOUND AND NOT TARGET Libtorch::torch)
  get_filename_component(_libtorch_lib ${Libtorch_CPU_LIBRARY} DIRECTORY)
  add_library(Libtorch::torch INTERFACE IMPORTED)
  target_include_directories(Libtorch::torch SYSTEM INTERFACE
    ${Libtorch_INCLUDE_DIR} ${Libtorch_INCLUDE_DIR}/torch/csrc/api/include)
  target_link_libraries(Libtorch::torch INTERFACE ${Libtorch_CPU_LIBRARY} ${Libtorch_C10_LIBRARY})
  target_compile_definitions(Libtorch::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_options(Libtorch::torch INTERFACE -Wl,-rpath,${_libtorch_lib})
endif()
