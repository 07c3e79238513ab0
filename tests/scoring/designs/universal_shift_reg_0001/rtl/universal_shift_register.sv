module universal_shift_register #(parameter N = 8) (
    input  logic         clk,
    input  logic         rst,
    input  logic [1:0]   mode_sel,
    input  logic         shift_dir,
    input  logic         serial_in,
    input  logic [N-1:0] parallel_in,
    output logic [N-1:0] q,
    output logic         serial_out
);
    wire fill = mode_sel == 2 ? serial_out : serial_in;

    // An `if`, so that an unknown direction counts as right.
    always_comb
        if (shift_dir) serial_out = q[N-1];
        else serial_out = q[0];

    always_ff @(posedge clk or posedge rst)
        if (rst) q <= 0;
        else if (mode_sel == 3) q <= parallel_in;
        else if (mode_sel != 0) q <= shift_dir ? {q, fill} : {fill, q} >> 1;
endmodule
