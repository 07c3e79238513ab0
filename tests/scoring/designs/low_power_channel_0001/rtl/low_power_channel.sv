// The controller decides what enters and leaves the FIFO, and its emptiness decides when the Q-channel may stop.
module low_power_channel #(
    parameter DATA_W = 8,
    parameter DEPTH = 8  // a power of two, for the FIFO's pointers
) (
    input  logic              clk,
    input  logic              reset,
    input  logic              if_wakeup_i,
    input  logic              wr_valid_i,
    input  logic [DATA_W-1:0] wr_payload_i,
    output logic              wr_flush_o,
    input  logic              wr_done_i,
    input  logic              rd_valid_i,
    output logic [DATA_W-1:0] rd_payload_o,
    input  logic              qreqn_i,
    output logic              qacceptn_o,
    output logic              qactive_o
);
    logic push, pop, full, empty;

    sync_fifo #(.DEPTH(DEPTH), .DATA_W(DATA_W)) u_fifo (
        .clk, .reset,
        .push_i(push), .push_data_i(wr_payload_i), .full_o(full),
        .pop_i(pop), .pop_data_o(rd_payload_o), .empty_o(empty)
    );

    low_power_ctrl u_ctrl (
        .clk, .reset, .if_wakeup_i,
        .wr_fifo_full(full), .wr_fifo_empty(empty), .wr_fifo_push(push), .wr_fifo_pop(pop),
        .wr_valid_i, .rd_valid_i, .wr_done_i, .wr_flush_o,
        .qreqn_i, .qacceptn_o, .qactive_o
    );
endmodule
