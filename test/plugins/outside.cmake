# Installs the package into an empty folder and builds, against it and nothing else, the examples and
# the broken plugins: cmake -DBINARY=… -DSOURCE=… -DSCRATCH=… -DCOMPILER=… -P outside.cmake
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}\n${out}")
  endif()
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BINARY} --prefix ${SCRATCH}/installed --component plugin)
foreach(folder conf/plugins test/plugins/broken)
  file(COPY ${SOURCE}/${folder}/ DESTINATION ${SCRATCH}/source/${folder})
  set(options -DCMAKE_PREFIX_PATH=${SCRATCH}/installed -DCMAKE_CXX_COMPILER=${COMPILER}
              -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=${SCRATCH}/build)
  if(LAUNCHER)
    list(APPEND options -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
  endif()
  run(${CMAKE_COMMAND} -S ${SCRATCH}/source/${folder} -B ${SCRATCH}/tree/${folder} -G Ninja ${options})
  run(${CMAKE_COMMAND} --build ${SCRATCH}/tree/${folder} -j1)
endforeach()
