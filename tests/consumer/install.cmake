# Installs the built library into a fresh folder: cmake -DBUILD=… -DINSTALLED=… -P install.cmake
file(REMOVE_RECURSE ${INSTALLED})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${INSTALLED} COMMAND_ERROR_IS_FATAL ANY)
