/* The subcommands of `tandem`: one file each, one entry each in main.c's table. */
#ifndef TD_CLI_CLI_H
#define TD_CLI_CLI_H

/** argv[0] is the subcommand's name. Each returns the exit status of the process. */
int td_cmd_launch_server(int argc, char **argv);
int td_cmd_quantize(int argc, char **argv);
int td_cmd_perplexity(int argc, char **argv);
int td_cmd_eval(int argc, char **argv);
int td_cmd_trace_routing(int argc, char **argv);
int td_cmd_bench(int argc, char **argv);
int td_cmd_plan(int argc, char **argv);
int td_cmd_topo(int argc, char **argv);
int td_cmd_doctor(int argc, char **argv);
int td_cmd_tokenize(int argc, char **argv);
int td_cmd_render_chat(int argc, char **argv);
int td_cmd_parse_answer(int argc, char **argv);
int td_cmd_grammar(int argc, char **argv);

#endif
