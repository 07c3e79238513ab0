module phase_rotation_viterbi #(
    parameter  NBW_IN  = 8,
    localparam NBW_COS = 10,
    localparam NBW_OUT = NBW_IN + NBW_COS + 1
) (
    input  logic                      clk,
    input  logic                      rst_async_n,
    input  logic signed [NBW_IN-1:0]  i_data_i,
    input  logic signed [NBW_IN-1:0]  i_data_q,
    output logic signed [NBW_OUT-1:0] o_data_i,
    output logic signed [NBW_OUT-1:0] o_data_q
);
    localparam NBW_POW   = 4 * NBW_IN;
    localparam NBW_SAT   = 6;
    localparam NBW_PHASE = 9;
    localparam NBW_ANG   = 7;

    logic                        rst_meta, rst_n;
    logic signed [NBW_POW-1:0]   data_i4_ff, data_q4_ff;
    logic signed [NBW_SAT-1:0]   data_i4_ff_sat, data_q4_ff_sat;
    logic signed [NBW_PHASE-1:0] phase, phase_div4;
    logic signed [NBW_ANG-1:0]   phase_div4_sat;
    logic signed [NBW_IN-1:0]    data_i_ff, data_q_ff;

    // The reset acts at once; its release passes two flip-flops to reach every register between the same edges.
    always_ff @(posedge clk or negedge rst_async_n)
        if (!rst_async_n) {rst_n, rst_meta} <= '0;
        else              {rst_n, rst_meta} <= {rst_meta, 1'b1};

    power4 #(.NBW_IN(NBW_IN), .NBW_OUT(NBW_POW)) uu_power4 (
        .clk        (clk),
        .rst_async_n(rst_n),
        .i_data_i   (i_data_i),
        .i_data_q   (i_data_q),
        .o_data_i   (data_i4_ff),
        .o_data_q   (data_q4_ff)
    );

    saturation #(.NBW_IN(NBW_POW), .NBW_OUT(NBW_SAT)) uu_saturation_i (
        .i_data(data_i4_ff),
        .o_data(data_i4_ff_sat)
    );

    saturation #(.NBW_IN(NBW_POW), .NBW_OUT(NBW_SAT)) uu_saturation_q (
        .i_data(data_q4_ff),
        .o_data(data_q4_ff_sat)
    );

    phase_lut #(.NBW_IN(NBW_SAT), .NBW_PHASE(NBW_PHASE)) uu_phase_lut (
        .i_data_i(data_i4_ff_sat),
        .i_data_q(data_q4_ff_sat),
        .o_phase (phase)
    );

    assign phase_div4 = phase >>> 2;

    saturation #(.NBW_IN(NBW_PHASE), .NBW_OUT(NBW_ANG)) uu_saturation_phase (
        .i_data(phase_div4),
        .o_data(phase_div4_sat)
    );

    // Samples wait one cycle, as long as power4 takes, to meet their own phase.
    always_ff @(posedge clk or negedge rst_n)
        if (!rst_n) begin
            data_i_ff <= '0;
            data_q_ff <= '0;
        end else begin
            data_i_ff <= i_data_i;
            data_q_ff <= i_data_q;
        end

    top_phase_rotation #(
        .NBW_ANG    (NBW_ANG),
        .NBW_COS    (NBW_COS),
        .NBW_IN_DATA(NBW_IN),
        .NS_IN      (1)
    ) uu_top_phase_rotation (
        .clk      (clk),
        .i_data_re(data_i_ff),
        .i_data_im(data_q_ff),
        .i_angle  (phase_div4_sat),
        .o_data_re(o_data_i),
        .o_data_im(o_data_q)
    );
endmodule
