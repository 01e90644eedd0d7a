# The C API: a shared library whose only symbols are the functions of moracle/c.h. What it needs of the library is
# linked in, so that programs in C, Rust, Go or Python load one file.
file(STRINGS ${PROJECT_SOURCE_DIR}/include/moracle/version.h version_lines REGEX "^#define MORACLE_VERSION_")
string(REGEX REPLACE "[^0-9;]" "" header_version "${version_lines}")
list(JOIN header_version . header_version)
if(NOT header_version STREQUAL PROJECT_VERSION)
  message(FATAL_ERROR "include/moracle/version.h: needs version ${PROJECT_VERSION}, as in CMakeLists.txt; it is ${header_version}")
endif()

moracle_room(c_api OPTIMIZE 1 USES base quant checkpoint layout oracle kernels moe)
add_library(moracle_c SHARED $<TARGET_OBJECTS:moracle_c_api>)
set(c_symbols ${PROJECT_SOURCE_DIR}/src/c_api/symbols.map)
target_link_libraries(moracle_c PRIVATE moracle)
target_link_options(moracle_c PRIVATE -Wl,--version-script=${c_symbols})
target_include_directories(moracle_c INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
# SOVERSION rises when a program built with older headers would no longer work; new functions and new members of
# structs do not raise it.
set_target_properties(moracle_c PROPERTIES EXPORT_NAME c VERSION ${PROJECT_VERSION} SOVERSION 0
  LINK_DEPENDS ${c_symbols} INSTALL_RPATH_USE_LINK_PATH ON)
add_library(moracle::c ALIAS moracle_c)
