# moracle-docs finds stale parts in a copy of docs/, prints place and remedy, and updates them:
# cmake -DDOCS=docs -DPROGRAM=moracle-docs -DWORK=folder -P stale.cmake
file(REMOVE_RECURSE ${WORK})
file(COPY ${DOCS}/ DESTINATION ${WORK})

# Runs the program once and looks for each text.
function(expect code mode)
  execute_process(COMMAND ${PROGRAM} --${mode} ${WORK}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL code)
    message(FATAL_ERROR "--${mode}: exit ${result}, not ${code}:\n${output}")
  endif()
  foreach(text IN LISTS ARGN)
    string(FIND "${output}" "${text}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "--${mode}: no '${text}' in:\n${output}")
    endif()
  endforeach()
endfunction()

function(change file from to)
  file(READ ${WORK}/${file} text)
  string(REPLACE "${from}" "${to}" changed "${text}")
  if(changed STREQUAL text)
    message(FATAL_ERROR "${file} has no '${from}'")
  endif()
  file(WRITE ${WORK}/${file} "${changed}")
endfunction()

function(expect_mended file)
  expect(0 write "${file}")
  expect(0 check)
  execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files ${DOCS}/${file} ${WORK}/${file}
    RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${file} is not as it was")
  endif()
endfunction()

expect(0 check)

change(support.md "| `bf16` | experts | yes |" "| `bf16` | experts | bias |")
expect(1 check "support.md, line" "- | `bf16` | experts | bias |" "+ | `bf16` | experts | yes |" "./dev docs")
expect_mended(support.md)

set(picture pictures/layout-vnni16-i8.svg)
change(${picture} "rows, 16 columns" "rows, 17 columns")
expect(1 check ${picture})
expect_mended(${picture})
file(REMOVE ${WORK}/${picture})
expect(1 check ${picture})
expect_mended(${picture})

file(TOUCH ${WORK}/pictures/layout-of-old.svg)
expect(1 check "layout-of-old.svg: nothing generates")
expect(0 write "removed")
expect(0 check)

# Errors that --write cannot repair.
file(READ ${WORK}/layouts.md layouts)
change(layouts.md "generated: layout vnni16" "generated: layout vnni17")
expect(1 check "'layout vnni17'")
expect(1 write "'layout vnni17'")
file(WRITE ${WORK}/layouts.md "# Without parts\n")
expect(1 write "generated: layout canonical")
file(WRITE ${WORK}/layouts.md "${layouts}${layouts}")
expect(1 write "layout canonical occurs twice")
string(REPLACE "<!-- end generated -->" "" unended "${layouts}")
file(WRITE ${WORK}/layouts.md "${unended}")
expect(1 write "another part begins")
