# Installs the built library into a fresh folder, builds the consumer against it, runs it on the model
# in the box: cmake -DBUILD=… -DSOURCE=… -DMODEL=… -DCXX=… -DGENERATOR=… -DFLAGS=… -P test.cmake
set(work ${BUILD}/consumer)
file(REMOVE_RECURSE ${work})
function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message(STATUS "${output}")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGN}")
  endif()
endfunction()
step(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/installed)
step(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${work}/build -DCMAKE_PREFIX_PATH=${work}/installed
     -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_BUILD_TYPE=Release)
step(${CMAKE_COMMAND} --build ${work}/build)
step(${work}/build/consumer ${MODEL})
