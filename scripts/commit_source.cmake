# Write OUT, which defines td_bench_commit: the commit of the tree at SOURCE ("-dirty" with changes; "unknown" without git).
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
if(failed)
    set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "extern const char td_bench_commit[];\nconst char td_bench_commit[] = \"${commit}\";\n")
