# Write OUT, which defines td_bench_commit: COMMIT where it is given (a build of an archive, which has no git), else the commit of the tree at SOURCE
# ("-dirty" with changes; "unknown" without git).
set(failed "")
set(commit "${COMMIT}")
if(NOT COMMIT)
    execute_process(COMMAND git -C ${SOURCE} describe --always --dirty OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
endif()
if(failed)
    set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "extern const char td_bench_commit[];\nconst char td_bench_commit[] = \"${commit}\";\n")
