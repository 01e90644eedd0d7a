# The HTTP server needs Boost.Beast, headers only. Without it `moracle serve` names the package.
find_package(Boost 1.74 QUIET)
if(Boost_FOUND)
  target_include_directories(moracle_serve SYSTEM PRIVATE ${Boost_INCLUDE_DIRS})
  target_compile_definitions(moracle_serve PRIVATE MORACLE_WITH_HTTP BOOST_ASIO_SEPARATE_COMPILATION
    BOOST_BEAST_SEPARATE_COMPILATION)
  # HTTPS (--tls-cert) needs OpenSSL. Without it the option names the package.
  if(OPENSSL_FOUND)
    target_compile_definitions(moracle_serve PRIVATE MORACLE_WITH_TLS)
    target_include_directories(moracle_serve SYSTEM PRIVATE ${OPENSSL_INCLUDE_DIR})
  else()
    message(STATUS "OpenSSL not found (libssl-dev): `moracle serve` refuses --tls-cert")
  endif()
  # The headers are large: each of these files is compiled once, by itself.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/serve/http/beast.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
else()
  message(STATUS "Boost.Beast not found (libboost-dev): `moracle serve` is not built")
endif()

# Answers in JSON need the grammar engine xgrammar, whose package for Python holds it as a C++ library. The build needs
# only the headers of apache-tvm-ffi, through which it is reached; the server loads both at run time. Without the headers
# it refuses response_format by name.
set(MORACLE_XGRAMMAR "" CACHE PATH "Folder with the Python packages xgrammar and tvm_ffi; empty: that of python3")
set(grammar_folder ${MORACLE_XGRAMMAR})
if(NOT grammar_folder)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  set(grammar_folder ${Python3_SITELIB})
endif()
find_path(MORACLE_TVM_FFI_HEADERS tvm/ffi/c_api.h PATHS ${grammar_folder}/tvm_ffi/include NO_DEFAULT_PATH)
mark_as_advanced(MORACLE_TVM_FFI_HEADERS)
if(MORACLE_TVM_FFI_HEADERS)
  target_include_directories(moracle_serve SYSTEM PRIVATE ${MORACLE_TVM_FFI_HEADERS})
  target_compile_definitions(moracle_serve PRIVATE MORACLE_WITH_XGRAMMAR)
  # Only this file names the folder, so that a build in another folder finds all others in the compiler's cache.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/serve/grammar/xgrammar.cc PROPERTIES
    SKIP_UNITY_BUILD_INCLUSION ON COMPILE_DEFINITIONS MORACLE_GRAMMAR_FOLDER="${grammar_folder}")
else()
  message(STATUS "apache-tvm-ffi not found (MORACLE_XGRAMMAR): `moracle serve` refuses response_format")
endif()

# The page becomes a string of the program.
set(serve_page ${PROJECT_SOURCE_DIR}/src/serve/page/index.html)
set(serve_page_header ${PROJECT_BINARY_DIR}/serve_page/serve/api/page.h)
add_custom_command(OUTPUT ${serve_page_header}
  COMMAND ${CMAKE_COMMAND} -DFILE=${serve_page} -DOUT=${serve_page_header} -P ${PROJECT_SOURCE_DIR}/cmake/EmbedPage.cmake
  DEPENDS ${serve_page} ${PROJECT_SOURCE_DIR}/cmake/EmbedPage.cmake)
add_custom_target(moracle_serve_page DEPENDS ${serve_page_header})
add_dependencies(moracle_serve moracle_serve_page)
target_include_directories(moracle_serve PRIVATE ${PROJECT_BINARY_DIR}/serve_page)
