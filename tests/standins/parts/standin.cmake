# What the stand-ins for vendors' libraries are made with.

set(TD_STANDIN_PARTS standin_base.c standin_memory.c standin_order.c standin_work.c)

# td_standin(TARGET NAME FOLDER SOURCES f… [LIBS t…] [HIDE symbol…]): FOLDER/NAME.so; HIDE leaves symbols out, for the loader's tests.
function(td_standin target name folder)
    cmake_parse_arguments(S "" "" "SOURCES;LIBS;HIDE" ${ARGN})
    add_library(${target} SHARED ${S_SOURCES})
    target_link_libraries(${target} PRIVATE td_options ${S_LIBS} Threads::Threads m)
    target_compile_options(${target} PRIVATE -fvisibility=hidden)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${folder} BUILD_RPATH "$ORIGIN" BUILD_RPATH_USE_ORIGIN ON)
    if(S_HIDE)
        list(JOIN S_HIDE "; " hidden)
        file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${target}.map "{ global: *; local: ${hidden}; };\n")
        target_link_options(${target} PRIVATE -Wl,--version-script=${CMAKE_CURRENT_BINARY_DIR}/${target}.map)
    endif()
endfunction()
