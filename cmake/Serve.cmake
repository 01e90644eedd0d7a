# The HTTP server needs Boost.Beast, headers only. Without it `moracle serve` names the package.
find_package(Boost 1.74 QUIET)
if(Boost_FOUND)
  target_include_directories(moracle_serve SYSTEM PRIVATE ${Boost_INCLUDE_DIRS})
  target_compile_definitions(moracle_serve PRIVATE MORACLE_WITH_HTTP BOOST_ASIO_SEPARATE_COMPILATION
    BOOST_BEAST_SEPARATE_COMPILATION)
  # The headers are large: each of these files is compiled once, by itself.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/serve/http/beast.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
else()
  message(STATUS "Boost.Beast not found (libboost-dev): `moracle serve` is not built")
endif()

# Answers in JSON need the grammar engine xgrammar. Its package for Python holds it as a C++ library, apache-tvm-ffi
# holds the headers and the library that reach it. Without them the server refuses response_format by name.
set(MORACLE_XGRAMMAR "" CACHE PATH "Folder with the Python packages xgrammar and tvm_ffi; empty: that of python3")
set(grammar_folder ${MORACLE_XGRAMMAR})
if(NOT grammar_folder)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  set(grammar_folder ${Python3_SITELIB})
endif()
find_path(MORACLE_TVM_FFI_HEADERS tvm/ffi/reflection/accessor.h
  PATHS ${grammar_folder}/tvm_ffi/include NO_DEFAULT_PATH)
find_library(MORACLE_TVM_FFI_LIBRARY tvm_ffi PATHS ${grammar_folder}/tvm_ffi/lib NO_DEFAULT_PATH)
find_library(MORACLE_XGRAMMAR_LIBRARY xgrammar_bindings PATHS ${grammar_folder}/xgrammar NO_DEFAULT_PATH)
mark_as_advanced(MORACLE_TVM_FFI_HEADERS MORACLE_TVM_FFI_LIBRARY MORACLE_XGRAMMAR_LIBRARY)
if(MORACLE_TVM_FFI_HEADERS AND MORACLE_TVM_FFI_LIBRARY AND MORACLE_XGRAMMAR_LIBRARY)
  # Nothing names a symbol of xgrammar: it registers its functions when it is loaded. A program that does not use
  # tvm_ffi itself must name it too, because the search path of a program does not count for what xgrammar needs.
  set(MORACLE_GRAMMAR_LIBRARIES -Wl,--push-state,--no-as-needed ${MORACLE_TVM_FFI_LIBRARY} ${MORACLE_XGRAMMAR_LIBRARY}
    -Wl,--pop-state)
  target_include_directories(moracle_serve SYSTEM PRIVATE ${MORACLE_TVM_FFI_HEADERS})
  target_compile_definitions(moracle_serve PRIVATE MORACLE_WITH_XGRAMMAR)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/serve/grammar/xgrammar.cc
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
else()
  message(STATUS "xgrammar not found (MORACLE_XGRAMMAR): `moracle serve` refuses response_format")
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
