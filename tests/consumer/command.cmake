# Runs the installed command: cmake -DINSTALLED=… -DMODEL=… -DVERSION=… -DWORK=… -P command.cmake
set(command ${INSTALLED}/bin/moracle)
function(expect text)
  execute_process(COMMAND ${command} ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT result EQUAL 0 OR NOT output MATCHES "${text}")
    message(FATAL_ERROR "${command} ${ARGN}: needs exit code 0 and \"${text}\"; ${result}: ${output}${errors}")
  endif()
endfunction()
expect("${VERSION}" --version)
expect("threads" machines)
expect("[a-z]" run ${MODEL} -p "And the LORD" -n 4 --seed 1)

# The command needs no file of the grammar engine to start. The server says which are missing.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${command} RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing)
if("${found};${missing}" MATCHES "tvm_ffi|xgrammar")
  message(FATAL_ERROR "${command} must not be linked with the grammar engine: ${found};${missing}")
endif()
file(MAKE_DIRECTORY ${WORK}/empty)
execute_process(COMMAND ${command} serve ${MODEL} --port 0 --grammar-engine ${WORK}/empty
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors TIMEOUT 60)
if(NOT result MATCHES "^[0-9]+$" OR result EQUAL 0 OR NOT errors MATCHES "needs [^\n]*(apache-tvm-ffi|libboost-dev)")
  message(FATAL_ERROR "serve without the grammar engine: needs an error that names the packages; ${result}: ${errors}")
endif()
