# The recipes' tests, in the build of a patched copy of the tree that check.py makes. project() includes this file, and
# CMake does so once more when the library is described.
if(NOT TARGET moracle)
  set(recipes ${CMAKE_CURRENT_LIST_FILE})
  cmake_language(DEFER CALL include ${recipes})
  return()
endif()
find_package(GTest REQUIRED)
set(tests ${PROJECT_SOURCE_DIR}/tests)
file(GLOB sources CONFIGURE_DEPENDS ${tests}/recipes/*_test.cc)
file(GLOB rooms ${PROJECT_BINARY_DIR}/rooms/*)
add_executable(recipes_test ${sources} ${tests}/paths.cc)
target_link_libraries(recipes_test PRIVATE moracle moracle_measuring moracle_warnings moracle_quick_build
  GTest::gmock GTest::gtest_main nlohmann_json::nlohmann_json)
target_include_directories(recipes_test PRIVATE ${tests} ${rooms})
target_compile_definitions(recipes_test PRIVATE
  MORACLE_GOLDEN_DIR="" MORACLE_DOCS_DIR="" MORACLE_MODELS_DIR="${PROJECT_SOURCE_DIR}/models" MORACLE_CHECKPOINTS_DIR="" MORACLE_PUBLISHED_CONFIGS_DIR=""
  MORACLE_COMMAND="$<TARGET_FILE:moracle-command>")
add_dependencies(recipes_test moracle-command)
