module slicer_top #(
    parameter NBW_REF = 7,
    parameter NBW_TH  = 7,
    parameter NBW_IN  = 7,
    parameter NBW_OUT = (NBW_TH > NBW_REF ? NBW_TH : NBW_REF) + 1
) (
    input  logic                      clk,
    input  logic                      rst_async_n,
    input  logic                      i_calc_cost,
    input  logic signed [NBW_IN-1:0]  i_data_i,
    input  logic signed [NBW_IN-1:0]  i_data_q,
    input  logic signed [NBW_TH-1:0]  i_threshold,
    input  logic signed [NBW_REF-1:0] i_sample_pos,
    output logic signed [2*NBW_OUT:0] o_energy,
    output logic                      o_cost_rdy
);
    logic signed [NBW_OUT-1:0] slicer_i, slicer_q;
    logic signed [NBW_OUT-1:0] held_i, held_q;
    logic                      capture;

    slicer #(
        .NBW_IN (NBW_IN),
        .NBW_TH (NBW_TH),
        .NBW_REF(NBW_REF),
        .NBW_OUT(NBW_OUT)
    ) uu_slicer_i (
        .i_data      (i_data_i),
        .i_threshold (i_threshold),
        .i_sample_pos(i_sample_pos),
        .o_data      (slicer_i)
    );

    slicer #(
        .NBW_IN (NBW_IN),
        .NBW_TH (NBW_TH),
        .NBW_REF(NBW_REF),
        .NBW_OUT(NBW_OUT)
    ) uu_slicer_q (
        .i_data      (i_data_q),
        .i_threshold (i_threshold),
        .i_sample_pos(i_sample_pos),
        .o_data      (slicer_q)
    );

    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n) begin
            capture    <= 1'b0;
            o_cost_rdy <= 1'b0;
            held_i     <= '0;
            held_q     <= '0;
        end else begin
            // As if/else, so that a request not driven yet counts as none.
            if (i_calc_cost) capture <= 1'b1;
            else             capture <= 1'b0;
            o_cost_rdy <= capture;
            if (capture) begin
                held_i <= slicer_i;
                held_q <= slicer_q;
            end
        end

    assign o_energy = held_i * held_i + held_q * held_q;
endmodule
