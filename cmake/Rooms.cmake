# A room is a folder of src/ and one object library. Its headers are reachable only through a link of
# its own name in ${build}/rooms/<room>/, which a target sees only if it links the room: an include
# that goes against the list of rooms in docs/map.md does not build.
function(moracle_room name)
  cmake_parse_arguments(ROOM "" "" "USES;LINKS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cc)
  if(MORACLE_CUDA)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cu)
    list(APPEND sources ${kernels})
    # Each .cu defines constants of its own; newer CMake would build them together, too.
    set_source_files_properties(${kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  else()
    # Every build can plan for a GPU.
    list(FILTER sources EXCLUDE REGEX "/src/kernels/cuda/")
    file(GLOB_RECURSE plans CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/cuda/*_plan.cc)
    list(APPEND sources ${plans})
  endif()
  set(door ${PROJECT_BINARY_DIR}/rooms/${name})
  file(MAKE_DIRECTORY ${door})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/${name} ${door}/${name} SYMBOLIC)
  add_library(moracle_${name} OBJECT ${sources})
  target_include_directories(moracle_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${door})
  list(TRANSFORM ROOM_USES PREPEND moracle_)
  target_link_libraries(moracle_${name} PUBLIC moracle_warnings ${ROOM_USES} PRIVATE ${ROOM_LINKS})
  set_target_properties(moracle_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()
