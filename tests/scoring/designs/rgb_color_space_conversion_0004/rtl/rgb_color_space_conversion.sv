// RGB to HSV, HSL and CMYK in eight clocks. A name's number is the clock, counted from `valid_in`, after which the value is
// there.
module rgb_color_space_conversion (
    input               clk,
    input               rst,
    input               we,
    input       [7:0]   waddr,
    input      [24:0]   wdata,
    input               valid_in,
    input       [7:0]   r_component,
    input       [7:0]   g_component,
    input       [7:0]   b_component,
    output reg [11:0]   hsv_channel_h,
    output reg [12:0]   hsv_channel_s,
    output reg [11:0]   hsv_channel_v,
    output reg [11:0]   hsl_channel_h,
    output     [12:0]   hsl_channel_s,
    output reg [11:0]   hsl_channel_l,
    output reg [15:0]   cmyk_channel_c,
    output reg [15:0]   cmyk_channel_m,
    output reg [15:0]   cmyk_channel_y,
    output reg  [7:0]   cmyk_channel_k,
    output reg          valid_out
);
    localparam RED = 0, GREEN = 1, BLUE = 2;

    reg [7:1] valid;
    reg [23:0] rgb_1, rgb_2;  // blue, green, red, from the top
    reg signed [8:0] g_sub_b [1:3];
    reg signed [8:0] b_sub_r [1:3];
    reg signed [8:0] r_sub_g [1:3];
    reg [7:0] rg_max_1, rg_min_1, i_min_2;
    reg green_wins_1;
    reg [1:0] winner_2, winner_3;
    reg [7:0] i_max [2:7];
    reg [7:0] delta_i [3:5];
    reg [8:0] sum_3;
    reg [7:0] lightness [4:7];
    reg [7:0] denominator_4;
    reg signed [8:0] pre_hue_4;
    reg signed [18:0] pre_hue_product_5;
    reg [8:0] offset [4:7];
    reg [24:0] inv_max_4, inv_delta_5;
    wire [24:0] inv_max_3, inv_delta_4, inv_denominator_5;
    wire [12:0] hsv_saturation_6;
    reg [12:0] hsv_saturation_7;
    wire signed [11:0] hue_7;
    wire [47:0] cmy_7;
    reg [7:0] key [3:7];
    integer i;

    multi_port_ram inverses (
        .clk(clk),
        .we(we),
        .waddr(waddr),
        .wdata(wdata),
        .raddr_a(i_max[2]),
        .rdata_a(inv_max_3),
        .raddr_b(delta_i[3]),
        .rdata_b(inv_delta_4),
        .raddr_c(denominator_4),
        .rdata_c(inv_denominator_5)
    );

    saturation_mult hsv_saturation (
        .clk(clk), .rst(rst), .a(inv_max_3), .b(delta_i[3]), .result(hsv_saturation_6)
    );

    saturation_mult hsl_saturation (
        .clk(clk), .rst(rst), .a(inv_denominator_5), .b(delta_i[5]), .result(hsl_channel_s)
    );

    hue_mult hue (
        .clk(clk), .rst(rst), .dataa(pre_hue_product_5), .datab(inv_delta_5), .result(hue_7)
    );

    // What each component lacks of the greatest: cyan of red, magenta of green, yellow of blue.
    genvar n;
    generate
        for (n = RED; n <= BLUE; n = n + 1) begin : ink
            reg [7:0] lack_3;
            reg [15:0] scaled_4;

            always @(posedge clk or posedge rst)
                if (rst) begin
                    lack_3 <= 0;
                    scaled_4 <= 0;
                end else begin
                    lack_3 <= i_max[2] - rgb_2[8*n +: 8];
                    scaled_4 <= lack_3 * 8'd255;
                end

            cmyk_mult ratio (
                .clk(clk), .rst(rst), .a(inv_max_4), .b(scaled_4), .result(cmy_7[16*n +: 16])
            );
        end
    endgenerate

    always @(posedge clk or posedge rst)
        if (rst) begin
            valid <= 0;
            for (i = 1; i <= 3; i = i + 1) begin
                g_sub_b[i] <= 0;
                b_sub_r[i] <= 0;
                r_sub_g[i] <= 0;
            end
            for (i = 2; i <= 7; i = i + 1) i_max[i] <= 0;
            for (i = 3; i <= 5; i = i + 1) delta_i[i] <= 0;
            for (i = 3; i <= 7; i = i + 1) key[i] <= 0;
            for (i = 4; i <= 7; i = i + 1) begin
                lightness[i] <= 0;
                offset[i] <= 0;
            end
            {rgb_1, rgb_2, rg_max_1, rg_min_1, i_min_2, green_wins_1, winner_2, winner_3} <= 0;
            {sum_3, denominator_4, pre_hue_4, pre_hue_product_5} <= 0;
            {inv_max_4, inv_delta_5, hsv_saturation_7} <= 0;
            {hsv_channel_h, hsv_channel_s, hsv_channel_v, hsl_channel_h, hsl_channel_l} <= 0;
            {cmyk_channel_c, cmyk_channel_m, cmyk_channel_y, cmyk_channel_k, valid_out} <= 0;
        end else begin
            valid <= {valid[6:1], valid_in};
            for (i = 2; i <= 3; i = i + 1) begin
                g_sub_b[i] <= g_sub_b[i-1];
                b_sub_r[i] <= b_sub_r[i-1];
                r_sub_g[i] <= r_sub_g[i-1];
            end
            for (i = 3; i <= 7; i = i + 1) i_max[i] <= i_max[i-1];
            for (i = 4; i <= 5; i = i + 1) delta_i[i] <= delta_i[i-1];
            for (i = 4; i <= 7; i = i + 1) key[i] <= key[i-1];
            for (i = 5; i <= 7; i = i + 1) begin
                lightness[i] <= lightness[i-1];
                offset[i] <= offset[i-1];
            end

            // The pixel stays in the first stage until the next one comes, and so do the results at the end.
            if (valid_in) begin
                rgb_1 <= {b_component, g_component, r_component};
                g_sub_b[1] <= g_component - b_component;
                b_sub_r[1] <= b_component - r_component;
                r_sub_g[1] <= r_component - g_component;
                rg_max_1 <= r_component > g_component ? r_component : g_component;
                rg_min_1 <= r_component > g_component ? g_component : r_component;
                green_wins_1 <= g_component > r_component;
            end

            rgb_2 <= rgb_1;
            i_max[2] <= rgb_1[23:16] > rg_max_1 ? rgb_1[23:16] : rg_max_1;
            i_min_2 <= rgb_1[23:16] < rg_min_1 ? rgb_1[23:16] : rg_min_1;
            winner_2 <= rgb_1[23:16] > rg_max_1 ? BLUE : green_wins_1 ? GREEN : RED;

            delta_i[3] <= i_max[2] - i_min_2;
            sum_3 <= i_max[2] + i_min_2;
            if (valid[2]) key[3] <= 8'd255 - i_max[2];
            winner_3 <= winner_2;

            // 1 - |2L - 1| in units of 1/255, where 2L is the sum: the sum itself below the middle, its complement above.
            denominator_4 <= sum_3 > 255 ? 9'd510 - sum_3 : sum_3;
            lightness[4] <= sum_3[8:1];
            inv_max_4 <= inv_max_3;
            case (winner_3)
                // Between magenta and red the difference is negative and the circle starts anew.
                RED: begin
                    pre_hue_4 <= g_sub_b[3];
                    offset[4] <= g_sub_b[3] < 0 ? 360 : 0;
                end
                GREEN: begin
                    pre_hue_4 <= b_sub_r[3];
                    offset[4] <= 120;
                end
                default: begin
                    pre_hue_4 <= r_sub_g[3];
                    offset[4] <= 240;
                end
            endcase

            pre_hue_product_5 <= pre_hue_4 * 19'sd60;
            inv_delta_5 <= inv_delta_4;
            hsv_saturation_7 <= hsv_saturation_6;

            hsv_channel_h <= hue_7 + $signed({1'b0, offset[7], 2'b00});
            hsl_channel_h <= hue_7 + $signed({1'b0, offset[7], 2'b00});
            hsv_channel_s <= hsv_saturation_7;
            hsv_channel_v <= i_max[7];
            hsl_channel_l <= lightness[7];
            {cmyk_channel_y, cmyk_channel_m, cmyk_channel_c} <= cmy_7;
            cmyk_channel_k <= key[7];
            valid_out <= valid[7];
        end
endmodule

// 1/n at address n, as a fraction of 24 bits.
module multi_port_ram (
    input               clk,
    input               we,
    input       [7:0]   waddr,
    input      [24:0]   wdata,
    input       [7:0]   raddr_a,
    output reg [24:0]   rdata_a,
    input       [7:0]   raddr_b,
    output reg [24:0]   rdata_b,
    input       [7:0]   raddr_c,
    output reg [24:0]   rdata_c
);
    reg [24:0] memory [0:255];

    always @(posedge clk) begin
        if (we) memory[waddr] <= wdata;
        rdata_a <= memory[raddr_a];
        rdata_b <= memory[raddr_b];
        rdata_c <= memory[raddr_c];
    end
endmodule

// Fraction of 24 bits times a whole number, rounded to a fraction of 12 bits, in three clocks.
module saturation_mult (
    input               clk,
    input               rst,
    input      [24:0]   a,
    input       [7:0]   b,
    output     [12:0]   result
);
    reg [24:0] a_held;
    reg  [7:0] b_held;
    reg [30:0] product;
    reg [18:0] rounded;

    assign result = rounded[12:0];

    always @(posedge clk or posedge rst)
        if (rst) begin
            {a_held, b_held, product, rounded} <= 0;
        end else begin
            a_held <= a;
            b_held <= b;
            product <= a_held * b_held;
            rounded <= product[30:12] + product[11];
        end
endmodule

// Fraction of 24 bits times a whole number, rounded to a fraction of 8 bits, in three clocks.
module cmyk_mult (
    input               clk,
    input               rst,
    input      [24:0]   a,
    input      [15:0]   b,
    output     [15:0]   result
);
    reg [24:0] a_held;
    reg [15:0] b_held;
    reg [40:0] product;
    reg [25:0] rounded;

    assign result = rounded[15:0];

    always @(posedge clk or posedge rst)
        if (rst) begin
            {a_held, b_held, product, rounded} <= 0;
        end else begin
            a_held <= a;
            b_held <= b;
            product <= a_held * b_held;
            rounded <= product[40:16] + product[15];
        end
endmodule

// Signed number times a fraction of 24 bits, cut off after two bits of fraction, in two clocks.
module hue_mult (
    input                    clk,
    input                    rst,
    input signed      [18:0] dataa,
    input             [24:0] datab,
    output reg signed [11:0] result
);
    reg signed [43:0] product;

    always @(posedge clk or posedge rst)
        if (rst) begin
            product <= 0;
            result <= 0;
        end else begin
            product <= dataa * $signed({1'b0, datab});
            result <= product[33:22];
        end
endmodule
