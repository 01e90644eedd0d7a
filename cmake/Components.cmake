# The library in components, of which an engine links what it uses: find_package(moracle COMPONENTS experts).
#   experts   weights in memory, the oracle, kernels, FusedMoe, Linear: needs no other library
#   parallel  experts over ranks: libsodium
#   model     checkpoints, tokenizers, whole models: oniguruma, utf8proc
#   serve     a model behind HTTP: OpenSSL, if the build has it
# Each is an archive, which the command and the tests link, too. `moracle` is all of them.
set(components "")
set(component_objects "")
set(component_links "")
function(moracle_component name)
  cmake_parse_arguments(PART "" "" "OBJECTS;USES;LINKS" ${ARGN})
  set(library moracle-${name})
  list(TRANSFORM PART_OBJECTS REPLACE "(.+)" "$<TARGET_OBJECTS:moracle_\\1>")
  list(TRANSFORM PART_USES PREPEND moracle-)
  add_library(${library} STATIC ${PART_OBJECTS})
  target_link_libraries(${library} PUBLIC ${PART_USES} PRIVATE ${PART_LINKS})
  moracle_public_headers(${library})
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${name})
  set(components ${components} ${name} PARENT_SCOPE)
  set(component_objects ${component_objects} ${PART_OBJECTS} PARENT_SCOPE)
  set(component_links ${component_links} ${PART_LINKS} PARENT_SCOPE)
endfunction()
function(moracle_public_headers library)
  target_include_directories(${library} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_compile_features(${library} PUBLIC cxx_std_20)
endfunction()

moracle_component(experts OBJECTS base quant checkpoint_described layout oracle kernels moe placement timing
                  LINKS Threads::Threads ${CMAKE_DL_LIBS} $<$<BOOL:${MORACLE_CUDA}>:CUDA::cudart_static>)
moracle_component(parallel OBJECTS parallel USES experts LINKS PkgConfig::SODIUM)
moracle_component(model OBJECTS base_regex checkpoint text models USES parallel
                  LINKS PkgConfig::ONIGURUMA PkgConfig::UTF8PROC)
set(last model)
if(MORACLE_COMMAND)
  moracle_component(serve OBJECTS serve USES model LINKS $<$<BOOL:${OPENSSL_FOUND}>:OpenSSL::SSL>)
  set(last serve)
endif()
add_library(moracle INTERFACE)
target_link_libraries(moracle INTERFACE moracle-${last})

# With BUILD_SHARED_LIBS one shared library holds all components and exports the names of the public headers. The
# components of the installed package are then names for it. Before 1.0 each minor version may break programs.
if(BUILD_SHARED_LIBS)
  add_library(moracle-shared SHARED ${component_objects})
  target_link_libraries(moracle-shared PRIVATE ${component_links})
  moracle_public_headers(moracle-shared)
  set_target_properties(moracle-shared PROPERTIES OUTPUT_NAME moracle EXPORT_NAME moracle VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endif()
# The names of the installed package, for a project that adds this one as a folder.
foreach(name moracle ${components})
  set(library moracle-${name})
  if(BUILD_SHARED_LIBS)
    set(library moracle-shared)
  elseif(name STREQUAL moracle)
    set(library moracle)
  endif()
  add_library(moracle::${name} ALIAS ${library})
endforeach()
