# Builds a project against the package in INSTALLED (see install.cmake) and runs its program on a model:
# cmake -DINSTALLED=… -DSOURCE=… -DWORK=… -DPROGRAM=… -DMODEL=… -DCXX=… [-DCC=… -DC_LIBRARIES=…] -DGENERATOR=…
# -DFLAGS=… [-DOPTIONS=…] [-DFORBIDDEN=…] -P test.cmake
# WORK is made anew. WORK/output.txt holds what the program printed. OPTIONS go to cmake; the program must not load a
# library whose name matches FORBIDDEN.
file(REMOVE_RECURSE ${WORK})
function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message(STATUS "${output}")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGN}")
  endif()
  file(WRITE ${WORK}/output.txt "${output}")
endfunction()
set(for_c)
if(CC)  # a project in C, too
  set(for_c -DCMAKE_C_COMPILER=${CC} -DCMAKE_C_FLAGS=${FLAGS}
      -DCMAKE_EXE_LINKER_FLAGS=${C_LIBRARIES})
endif()
step(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${WORK}/build -DCMAKE_PREFIX_PATH=${INSTALLED}
     -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_BUILD_TYPE=Release ${for_c} ${OPTIONS})
step(${CMAKE_COMMAND} --build ${WORK}/build)
step(${WORK}/build/${PROGRAM} ${MODEL})
if(FORBIDDEN)
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${WORK}/build/${PROGRAM}
    RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing)
  if("${found};${missing}" MATCHES "${FORBIDDEN}")
    message(FATAL_ERROR "${PROGRAM} must not load ${CMAKE_MATCH_0}: ${found};${missing}")
  endif()
endif()
